#include "src/cli/live_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/cli/progress_text.h"
#include "src/control/control_channel.h"

namespace gcr::cli {
namespace {

using control::printable;
using Line = TerminalBlock::Line;

constexpr std::size_t kLeastBar = 10;
constexpr std::size_t kMostBar = 40;
constexpr std::size_t kIndent = 2;
constexpr std::size_t kPhaseColumns = 10;

// ECMA-48, SGR
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kPlain = "\x1b[0m";

/// Collects one line that never reaches the terminal's last column.
class Composer {
 public:
  Composer(std::size_t columns, bool colours)
      : room_(columns > 1 ? columns - 1 : 1), colours_(colours) {}

  std::size_t left() const { return room_ - line_.columns; }
  bool empty() const { return line_.columns == 0; }

  Composer& add(std::string_view text, const char* colour = nullptr) {
    text = text.substr(0, left());
    const bool coloured = colours_ && colour != nullptr;
    if (coloured) line_.text += colour;
    line_.text += text;
    if (coloured) line_.text += kPlain;
    line_.columns += text.size();
    return *this;
  }

  Line take() { return std::exchange(line_, {}); }

 private:
  std::size_t room_;
  bool colours_;
  Line line_;
};

/// Phase, round, bar and share.
Line head_of(const proto::Progress& progress, Composer line) {
  line.add(
      fmt::format("{:<{}} ", printable(progress.phase()).substr(0, kPhaseColumns), kPhaseColumns),
      progress.paused() ? kYellow : kBold);
  if (progress.round() == 0) {
    return line.add(duration_text(progress.elapsed_ms())).take();
  }
  const double share = share_sent(progress);
  const std::string percent = fmt::format(" {:>3.0f} %", share * 100);
  line.add(fmt::format("round {:<3} ", progress.round()));
  if (line.left() >= kLeastBar + 2 + percent.size()) {
    const std::size_t bar = std::min(kMostBar, line.left() - 2 - percent.size());
    const auto full = static_cast<std::size_t>(std::lround(share * static_cast<double>(bar)));
    line.add("[").add(std::string(full, '#'), kGreen).add(std::string(bar - full, '-')).add("]");
  }
  return line.add(percent).take();
}

}  // namespace

std::vector<Line> live_lines(const proto::Progress& progress, std::size_t columns, bool colours) {
  Composer line(columns, colours);
  std::vector<Line> lines{head_of(progress, line)};
  std::vector<std::string> details = progress_details(progress);
  if (progress.round() > 0) details.push_back(duration_text(progress.elapsed_ms()) + " so far");
  for (const std::string& detail : details) {
    if (!line.empty() && line.left() < detail.size() + 2) lines.push_back(line.take());
    line.add(line.empty() ? std::string(kIndent, ' ') : ", ").add(detail);
  }
  if (!line.empty()) lines.push_back(line.take());
  return lines;
}

void LiveView::draw() {
  if (last_) block_.draw(live_lines(*last_, terminal_size().columns, colours_));
}

void LiveView::started(const Uuid& id) {
  block_.erase();
  plain_.started(id);
  draw();
}

/// Rounds come and go in the display alone.
void LiveView::event(const std::string& phase, const std::string& text) {
  if (phase == "precopy" && text.starts_with("round ")) return;
  block_.erase();
  plain_.event(phase, text);
  draw();
}

void LiveView::progress(const proto::Progress& progress) {
  last_ = progress;
  draw();
}

void LiveView::ended(const Outcome& outcome) {
  block_.erase();
  plain_.ended(outcome);
}

}  // namespace gcr::cli
