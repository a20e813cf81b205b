#include "tests/support/terminal.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace gcr::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kBetweenLooks{30};
/// Between two resizes: tmux 3.3, window_pane_send_resize().
constexpr std::chrono::milliseconds kTmuxRest{300};

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string command_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + quoted(word);
  return line;
}

/// The output of the command; throws if it fails.
std::string run(const std::string& line) {
  FILE* const pipe = ::popen(line.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + line);
  std::string out;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    out.append(buffer.data(), n);
  }
  if (::pclose(pipe) != 0) throw std::runtime_error(line + " failed: " + out);
  return out;
}

}  // namespace

std::string Terminal::tmux(const std::vector<std::string>& words) const {
  return run("tmux -S " + quoted(folder_ + "/socket") + " -f /dev/null " + command_line(words) +
             " 2>&1");
}

Terminal::Terminal(unsigned columns, unsigned rows, const std::vector<std::string>& words,
                   const std::vector<std::string>& environment) {
  std::string pattern = (std::filesystem::temp_directory_path() / "gcr-terminal-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  folder_ = pattern;
  std::vector<std::string> program{"env", "-i", "TERM=tmux"};
  program.insert(program.end(), environment.begin(), environment.end());
  program.insert(program.end(), words.begin(), words.end());
  // The window stays when the program has ended; tmux itself occasionally loses its exit status.
  const std::string status = quoted(folder_ + "/status");
  tmux({"set-option", "-g", "remain-on-exit", "on", ";", "set-option", "-g", "history-limit",
        "5000", ";", "new-session", "-d", "-x", std::to_string(columns), "-y", std::to_string(rows),
        "trap : INT; " + command_line(program) + "; echo $? >" + status + ".new; mv " + status +
            ".new " + status});
}

Terminal::~Terminal() {
  try {
    tmux({"kill-server"});
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "%s\n", exception.what());
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string Terminal::screen(bool all) const {
  std::vector<std::string> words{"capture-pane", "-p"};
  if (all) words.insert(words.end(), {"-S", "-"});
  return tmux(words);
}

std::string Terminal::screen_with_colours() const { return tmux({"capture-pane", "-p", "-e"}); }

bool Terminal::wait_for(const std::function<bool(const std::string&)>& wanted) const {
  for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
    if (wanted(screen())) return true;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return false;
}

bool Terminal::wait_for(const std::string& text) const {
  return wait_for(
      [&](const std::string& screen) { return screen.find(text) != std::string::npos; });
}

void Terminal::press(const std::string& key) const { tmux({"send-keys", key}); }

void Terminal::resize(unsigned columns, unsigned rows) const {
  std::this_thread::sleep_for(kTmuxRest);
  tmux({"resize-window", "-x", std::to_string(columns), "-y", std::to_string(rows)});
}

int Terminal::finish() const {
  for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
    int status = -1;
    if (std::ifstream(folder_ + "/status") >> status) return status;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return -1;
}

}  // namespace gcr::test
