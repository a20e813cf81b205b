// Journals whose worker has ended without finishing them: each gets recovery workers, one after the
// other, until nothing is left to do. A suspended job gets one, and then waits here, its processes
// claimed, until it is resumed or one of its processes ends. Belongs to the daemon's thread; never
// waits for a journal that a worker holds.
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
  /// Starts a worker process for the journal of this name; `id` identifies it from then on. False
  /// if it cannot be started now.
  using Start = std::function<bool(WorkerId id, const std::string& name)>;

  /// `next_id` gives a recovery's id, which is the same for all its worker processes: under it the
  /// migration's process is claimed in `registry`, so that no other migration moves it meanwhile.
  /// `on_damage` is called for each damaged journal.
  Recoveries(asio::io_context& io, Registry& registry, std::function<WorkerId()> next_id,
             Start start, std::function<void()> on_damage);

  /// Prunes the journals of this agent, then recovers those that are unfinished. If a worker of an
  /// earlier daemon still has one, its recovery waits for that worker.
  void begin(const std::filesystem::path& state_dir);

  /// A worker that had this journal has ended. If it did not end `well`, recovery also cleans up
  /// after a finished one.
  void add_after(const journal::Entry& entry, bool well);

  /// For a worker that resumes a suspended job: no recovery has it from now on. Gives its
  /// processes, whose claims stay as they are. kRefused if it is not suspended.
  Result<journal::ProcessIds> take_suspended(const journal::Entry& entry);

  bool empty() const { return recoveries_.empty(); }
  bool contains(WorkerId id) const { return recoveries_.contains(id); }

  /// A recovery's process has ended: it is `done`, or is started again.
  void process_ended(WorkerId id, bool done);

  /// From now on nothing is started.
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
    bool waits = false;  ///< no worker is at it, until one of them ends
  };

  enum class Need : std::uint8_t;

  Need need_of(const std::filesystem::path& path) const;
  WorkerId add(const journal::Entry& entry);
  bool has(const journal::Entry& entry) const;
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
