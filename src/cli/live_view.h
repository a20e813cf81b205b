// A migration on a terminal: past events scroll, the current state is drawn below them in place.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/cli/plain_view.h"
#include "src/cli/terminal_block.h"

namespace gcr::cli {

/// The lines drawn for a Progress on a terminal with this many columns.
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
