// Journals whose worker has ended without finishing them: each gets a recovery worker, again and
// again until nothing is left to do. Belongs to the daemon's thread; waits for no disk that a
// worker holds.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <unordered_map>

#include "migrate-agent/daemon/registry.h"
#include "migrate-agent/journal/journal_files.h"

namespace gcr::agent {

/// Between two attempts at one journal; twice as long after each.
inline constexpr std::chrono::milliseconds kFirstRecoveryPause = std::chrono::milliseconds(200);
inline constexpr std::chrono::milliseconds kLongestRecoveryPause = std::chrono::seconds(10);

class Recoveries {
 public:
  /// Starts a worker process for the journal of this name and knows it as `id` from then on. False
  /// if it cannot be started now.
  using Start = std::function<bool(WorkerId id, const std::string& name)>;

  /// A recovery's id, which `next_id` gives, stays the same for all its processes: the process that
  /// its migration moves is claimed in `registry` under it, so that nobody else moves it meanwhile.
  /// `on_damage` is called for each journal that cannot be believed.
  Recoveries(asio::io_context& io, Registry& registry, std::function<WorkerId()> next_id,
             Start start, std::function<void()> on_damage);

  /// Prunes the journals of this agent, then recovers what is unfinished: the workers of an earlier
  /// daemon may still be at it, recovery waits for them.
  void begin(const std::filesystem::path& state_dir);

  /// A worker that had this journal has ended; if it did not end `well`, recovery also clears away
  /// what it left of a finished one.
  void add_after(const journal::Entry& entry, bool well);

  bool empty() const { return recoveries_.empty(); }
  bool contains(WorkerId id) const { return recoveries_.contains(id); }

  /// A recovery's process has ended: there is nothing left to do, or it is started again.
  void process_ended(WorkerId id, bool done);

  /// Nothing is started from now on.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Recovery {
    journal::Entry entry;
    asio::steady_timer timer;
    std::chrono::milliseconds pause = kFirstRecoveryPause;
    Clock::time_point started = {};
  };

  enum class Need : std::uint8_t;

  Need need_of(const std::filesystem::path& path) const;
  void add(const journal::Entry& entry);
  void start(WorkerId id, Recovery& recovery);
  void start_later(WorkerId id, Recovery& recovery);
  void claim_process(WorkerId id, const journal::Entry& entry);

  asio::io_context& io_;
  Registry& registry_;
  std::function<WorkerId()> next_id_;
  Start start_;
  std::function<void()> on_damage_;
  std::unordered_map<WorkerId, Recovery> recoveries_;
  bool stopped_ = false;
};

}  // namespace gcr::agent
