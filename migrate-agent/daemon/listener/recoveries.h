// Recovery of journals whose worker has ended without finishing them. Each gets recovery workers,
// one after the other, until no work is left. A suspended job gets one, and then waits here with
// its processes claimed until it is resumed or one of its processes ends. Belongs to the daemon's
// thread, and never waits for a journal that a worker holds.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/daemon/listener/registry.h"

namespace gcr::daemon {

/// Pause between two attempts at one journal; doubled after each.
inline constexpr std::chrono::milliseconds kFirstRecoveryPause = std::chrono::milliseconds(200);
inline constexpr std::chrono::milliseconds kLongestRecoveryPause = std::chrono::seconds(10);

class Recoveries {
 public:
  /// Starts a worker process for the journal of this name; `id` identifies the worker. Returns
  /// false if it cannot be started now.
  using Start = std::function<bool(WorkerId id, const std::string& name)>;

  /// `next_id` returns a recovery's id, which is the same for all its worker processes. The
  /// migration's processes are claimed in `registry` under this id, so that no other migration
  /// moves them meanwhile. `on_damage` is called for each damaged journal.
  Recoveries(asio::io_context& io, Registry& registry, std::function<WorkerId()> next_id,
             Start start, std::function<void()> on_damage);

  /// Prunes the journals of this agent, then recovers the unfinished ones. If a worker of an
  /// earlier daemon still owns one, its recovery waits for that worker.
  void begin(const std::filesystem::path& state_dir);

  /// Called when a worker with this journal has ended. If it failed (not `well`), recovery also
  /// cleans up after a finished migration.
  void add_after(const journal::Entry& entry, bool well);

  /// Takes a suspended job out of recovery, for a worker that resumes it, and returns its
  /// processes. Their claims stay unchanged. kRefused if the job is not suspended.
  Result<journal::ProcessIds> take_suspended(const journal::Entry& entry);

  bool empty() const { return recoveries_.empty(); }
  bool contains(WorkerId id) const { return recoveries_.contains(id); }

  /// Called when a recovery's process has ended: the recovery is `done`, or is started again after
  /// a pause.
  void process_ended(WorkerId id, bool done);

  /// Starts no more workers from now on.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Recovery {
    journal::Entry entry;
    asio::steady_timer timer;
    std::chrono::milliseconds pause = kFirstRecoveryPause;
    Clock::time_point started = {};
    /// pidfds of a suspended job's processes, since the last worker was started
    std::vector<asio::posix::stream_descriptor> members = {};
    bool waits = false;  ///< no worker runs until one of the members ends
  };

  enum class Need : std::uint8_t;

  Need need_of(const std::filesystem::path& path) const;
  void add(const journal::Entry& entry);
  void open_members(Recovery& recovery);
  void wait_suspended(WorkerId id, Recovery& recovery);
  void start(WorkerId id, Recovery& recovery);
  void start_later(WorkerId id, Recovery& recovery);
  void claim_processes(WorkerId id, const journal::Entry& entry);

  asio::io_context& io_;
  Registry& registry_;
  std::function<WorkerId()> next_id_;
  Start start_;
  std::function<void()> on_damage_;
  std::unordered_map<WorkerId, Recovery> recoveries_;
  bool stopped_ = false;
};

}  // namespace gcr::daemon
