// A migration as plain lines, for files and pipes.
#pragma once

#include <chrono>

#include "src/cli/migration_view.h"

namespace gcr::cli {

class PlainView : public MigrationView {
 public:
  /// Progress gets a line this often.
  static constexpr std::chrono::seconds kInterval{5};

  /// `options` outlives the view.
  explicit PlainView(const MigrateOptions& options);

  void started(const Uuid& id) override;
  void event(const std::string& phase, const std::string& text) override;
  void progress(const proto::Progress& progress) override;
  void ended(const Outcome& outcome) override;

 private:
  const MigrateOptions& options_;
  std::chrono::steady_clock::time_point said_ = std::chrono::steady_clock::now();
};

}  // namespace gcr::cli
