#include "src/cli/migration_view.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "src/cli/agent_call.h"
#include "src/cli/json_line.h"
#include "src/cli/live_view.h"
#include "src/cli/plain_view.h"
#include "src/cli/progress_text.h"
#include "src/cli/summary.h"
#include "src/cli/terminal_block.h"

namespace gcr::cli {
namespace {

using control::printable;

class JsonView : public MigrationView {
 public:
  explicit JsonView(bool quiet) : quiet_(quiet) {}

  void started(const Uuid& id) override {
    id_ = id;
    if (!quiet_) print_now(json_line("started", id_, proto::Started()));
  }

  void event(const std::string& phase, const std::string& text) override {
    if (quiet_) return;
    proto::Event event;
    event.set_phase(printable(phase));
    event.set_text(printable(text));
    print_now(json_line("event", id_, event));
  }

  void progress(const proto::Progress& progress) override {
    if (!quiet_) print_now(json_line("progress", id_, progress));
  }

  void ended(const Outcome& outcome) override {
    if (!outcome.detached) return print_now(json_report(outcome.report, outcome.exit_code));
    print_now(json_line("started", to_uuid(outcome.report.migration_id()), proto::Started()));
  }

 private:
  bool quiet_;
  Uuid id_;
};

class QuietView : public MigrationView {
 public:
  void started(const Uuid&) override {}
  void event(const std::string&, const std::string&) override {}
  void progress(const proto::Progress&) override {}
  void ended(const Outcome& outcome) override { print_now(last_line(outcome)); }
};

}  // namespace

PlainView::PlainView(const MigrateOptions& options) : options_(options) {}

void PlainView::started(const Uuid& id) {
  print_now(fmt::format("migration {}\n", id.to_string()));
}

void PlainView::event(const std::string& phase, const std::string& text) {
  print_now(fmt::format("{}: {}\n", printable(phase), printable(text)));
}

void PlainView::progress(const proto::Progress& progress) {
  const auto now = std::chrono::steady_clock::now();
  if (now - said_ < kInterval) return;
  said_ = now;
  event(progress.phase(), progress_line(progress));
}

void PlainView::ended(const Outcome& outcome) {
  if (outcome.exit_code != ExitCode::kMigrated || outcome.detached)
    return print_now(last_line(outcome));
  print_now(outcome.from_journal ? short_summary(options_, outcome.report)
                                 : summary(options_, outcome.report));
}

std::unique_ptr<MigrationView> make_view(const MigrateOptions& options) {
  if (options.json) return std::make_unique<JsonView>(options.quiet);
  if (options.quiet) return std::make_unique<QuietView>();
  if (is_terminal()) return std::make_unique<LiveView>(options);
  return std::make_unique<PlainView>(options);
}

}  // namespace gcr::cli
