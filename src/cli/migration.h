// The conversation with the source's agent about one migration: the request, progress, the report;
// cancelling it on Ctrl-C; and, if the connection is lost, what the agent's journal says later.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "src/cli/migration_view.h"

namespace gcr::cli {

/// How long the agent is asked what became of the migration after the connection was lost.
inline constexpr std::chrono::milliseconds kOutcomePatience = std::chrono::seconds(60);
/// The part of that time that a destination gets to confirm a commit.
inline constexpr std::chrono::milliseconds kConfirmPatience = std::chrono::seconds(10);

/// Belongs to the thread that runs the io_context. While it exists it handles SIGINT and
/// SIGTERM: the first cancels the migration, the second quits.
class Migration {
 public:
  /// `view` shows the migration, except its end. `leave` ends the process with this outcome.
  using Leave = std::function<void(const Outcome&)>;

  Migration(asio::io_context& io, const MigrateOptions& options, control::AgentAddress source,
            MigrationView& view, Leave leave);

  /// Runs to the end; with `detach` until the agent has accepted the migration. Call once.
  asio::awaitable<Outcome> run();

 private:
  asio::awaitable<Outcome> migrate();
  asio::awaitable<Outcome> follow();
  std::optional<Outcome> take(const proto::Envelope& message);
  asio::awaitable<Outcome> ask_what_became(Outcome lost);
  /// An agent's part in the migration; kNotFound if it has none.
  asio::awaitable<Result<proto::MigrationStatus>> ask_part(const control::AgentAddress& agent,
                                                           const char* role);
  asio::awaitable<void> complete(Outcome& outcome);
  asio::awaitable<void> heed_signals();
  asio::awaitable<void> cancel();
  Outcome left() const;

  asio::io_context& io_;
  const MigrateOptions& options_;
  MigrationView& view_;
  control::AgentAddress source_;
  Leave leave_;
  asio::signal_set signals_;
  std::unique_ptr<control::ControlChannel> channel_;
  bool asked_ = false;
  std::optional<Uuid> id_;  ///< once the agent has accepted it
};

}  // namespace gcr::cli
