#include "src/cli/terminal_block.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace gcr::cli {
namespace {

constexpr const char* kEraseBelow = "\x1b[J";  // ECMA-48, ED

}  // namespace

void print_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

TerminalSize terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    return {};
  }
  return {size.ws_col, size.ws_row};
}

bool is_terminal() {
  const char* const kind = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && kind != nullptr && *kind != '\0' &&
         std::string_view(kind) != "dumb";
}

bool colours_allowed() {
  const char* const wish = std::getenv("NO_COLOR");
  return wish == nullptr || *wish == '\0';
}

/// Returns the sequence that moves the cursor to the first drawn line. Terminals that have become
/// narrower wrap the lines again.
std::string TerminalBlock::back_to_begin() const {
  const TerminalSize size = terminal_size();
  std::size_t rows = 0;
  for (const std::size_t columns : drawn_) {
    rows += std::max<std::size_t>(1, (columns + size.columns - 1) / size.columns);
  }
  rows = std::min(rows, size.rows - 1);
  // A Ctrl-C shows on the line below.
  return rows == 0 ? std::string("\r") : fmt::format("\r\x1b[{}A", rows);
}

void TerminalBlock::draw(const std::vector<Line>& lines) {
  std::string text = drawn_.empty() ? std::string() : back_to_begin() + kEraseBelow;
  const std::size_t most = terminal_size().rows - 1;
  drawn_.clear();
  for (const Line& line : lines) {
    if (drawn_.size() >= most) break;
    text += line.text + "\n";
    drawn_.push_back(line.columns);
  }
  print_now(text);
}

void TerminalBlock::erase() {
  if (drawn_.empty()) return;
  print_now(back_to_begin() + kEraseBelow);
  drawn_.clear();
}

}  // namespace gcr::cli
