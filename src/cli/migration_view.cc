#include "src/cli/migration_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "src/cli/json.h"
#include "src/cli/progress_text.h"
#include "src/cli/terminal_block.h"
#include "src/control/wire.h"

namespace gcr::cli {
namespace {

using control::printable;
using Clock = std::chrono::steady_clock;
using Line = TerminalBlock::Line;

/// Version of the lines of JSON. Increase it when a reader of the old lines would misunderstand the
/// new ones, but not for new fields and types.
constexpr int kEventSchema = 1;

/// Interval of plain progress lines.
constexpr std::chrono::seconds kPlainInterval{5};

constexpr std::size_t kLeastBar = 10;
constexpr std::size_t kMostBar = 40;
constexpr std::size_t kIndent = 2;
constexpr std::size_t kPhaseColumns = 10;

// ECMA-48, SGR
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kPlain = "\x1b[0m";

/// Returns one line of JSON as docs/events.md describes it: `more`, and then the message's fields.
std::string json_line(std::string_view type, const Uuid& id, const std::string& more,
                      const Message& message) {
  using namespace std::chrono;
  const auto now = duration_cast<milliseconds>(system_clock::now().time_since_epoch());
  std::string fields = to_json(message);
  fields = fields.substr(1, fields.size() - 2);  // without braces
  // Protobuf prints the bytes of the id, the first field, in base64: remove it.
  if (fields.starts_with("\"migration_id\"")) {
    const auto comma = fields.find(',');
    fields.erase(0, comma == std::string::npos ? comma : comma + 1);
  }
  return fmt::format(R"({{"schema":{},"type":"{}","unix_ms":{},"migration_id":"{}"{}{}{}}})"
                     "\n",
                     kEventSchema, type, now.count(), id == Uuid{} ? "" : id.to_string(), more,
                     fields.empty() ? "" : ",", fields);
}

class JsonView : public MigrationView {
 public:
  explicit JsonView(bool quiet) : quiet_(quiet) {}

  void started(const Uuid& id) override {
    id_ = id;
    if (!quiet_) print_now(started_line());
  }

  void event(const std::string& phase, const std::string& text) override {
    if (quiet_) return;
    proto::Event event;
    event.set_phase(printable(phase));
    event.set_text(printable(text));
    print_now(json_line("event", id_, "", event));
  }

  void progress(const proto::Progress& progress) override {
    if (!quiet_) print_now(json_line("progress", id_, "", progress));
  }

  void ended(const Outcome& outcome) override {
    id_ = to_uuid(outcome.report.migration_id());
    if (outcome.detached) return print_now(started_line());
    const std::string status =
        fmt::format(",\"exit_status\":{}", static_cast<int>(outcome.exit_code));
    print_now(json_line("report", id_, status, outcome.report));
  }

 private:
  std::string started_line() const { return json_line("started", id_, "", proto::Started()); }

  bool quiet_;
  Uuid id_;
};

class QuietView : public MigrationView {
 public:
  explicit QuietView(Task task) : task_(task) {}

  void ended(const Outcome& outcome) override { print_now(last_line(task_, outcome)); }

 private:
  const Task task_;
};

/// Prints lines for files and pipes.
class PlainView : public MigrationView {
 public:
  explicit PlainView(const Order& order) : order_(order) {}

  void started(const Uuid& id) override {
    print_now(fmt::format("{} {}\n", to_string(task_of(order_)), id.to_string()));
  }

  void event(const std::string& phase, const std::string& text) override {
    print_now(fmt::format("{}: {}\n", printable(phase), printable(text)));
  }

  void progress(const proto::Progress& progress) override {
    const auto now = Clock::now();
    if (now - said_ < kPlainInterval) return;
    said_ = now;
    event(progress.phase(), progress_line(progress));
  }

  void ended(const Outcome& outcome) override { print_now(summary(order_, outcome)); }

 private:
  const Order& order_;
  Clock::time_point said_ = Clock::now();
};

/// Composes one line that never reaches the terminal's last column.
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

/// Returns the line with phase, round, bar and percentage.
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

/// Returns the lines for a Progress on a terminal with this many columns.
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

/// Shows a migration on a terminal: past events scroll, the current state is redrawn below them.
class LiveView : public PlainView {
 public:
  using PlainView::PlainView;

  void started(const Uuid& id) override {
    block_.erase();
    PlainView::started(id);
    draw();
  }

  /// Omits the events of rounds, which the display already shows.
  void event(const std::string& phase, const std::string& text) override {
    if (phase == "precopy" && text.starts_with("round ")) return;
    block_.erase();
    PlainView::event(phase, text);
    draw();
  }

  void progress(const proto::Progress& progress) override {
    last_ = progress;
    draw();
  }

  void ended(const Outcome& outcome) override {
    block_.erase();
    PlainView::ended(outcome);
  }

 private:
  void draw() {
    if (last_) block_.draw(live_lines(*last_, terminal_size().columns, colours_));
  }

  TerminalBlock block_;
  std::optional<proto::Progress> last_;
  bool colours_ = colours_allowed();
};

}  // namespace

std::unique_ptr<MigrationView> make_view(const Order& order) {
  if (order.json) return std::make_unique<JsonView>(order.quiet);
  if (order.quiet) return std::make_unique<QuietView>(task_of(order));
  if (is_terminal()) return std::make_unique<LiveView>(order);
  return std::make_unique<PlainView>(order);
}

ExitCode show_outcome(MigrationView& view, Task task, const Outcome& outcome) {
  view.ended(outcome);
  if (outcome.exit_code != ExitCode::kMigrated) complain(error_line(task, outcome));
  return outcome.exit_code;
}

}  // namespace gcr::cli
