// A migration on a terminal: what happened scrolls, what is going on is drawn below it in place.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/cli/plain_view.h"
#include "src/cli/terminal_block.h"

namespace gcr::cli {

/// What is drawn of a Progress on a terminal of so many columns.
std::vector<TerminalBlock::Line> live_lines(const proto::Progress& progress, std::size_t columns,
                                            bool colours);

class LiveView : public MigrationView {
 public:
  /// `options` outlives the view.
  explicit LiveView(const MigrateOptions& options) : plain_(options) {}

  void started(const Uuid& id) override;
  void event(const std::string& phase, const std::string& text) override;
  void progress(const proto::Progress& progress) override;
  void ended(const Outcome& outcome) override;

 private:
  void draw();

  PlainView plain_;
  TerminalBlock block_;
  std::optional<proto::Progress> last_;
  bool colours_ = colours_allowed();
};

}  // namespace gcr::cli
