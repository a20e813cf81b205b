// A relay between two ends of TCP connections on this machine, that can cut or stall them: network
// faults, on demand and at an exact byte.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <list>
#include <mutex>
#include <thread>

#include "src/base/unique_fd.h"

namespace gcr::test {

/// A listening socket on a free port of 127.0.0.1. Throws std::runtime_error if there is none.
class LoopbackListener {
 public:
  LoopbackListener();
  std::uint16_t port() const { return port_; }
  /// Waits for the next connection; empty after stop().
  UniqueFd accept() const;
  /// Ends accept(), from any thread.
  void stop() const;

 private:
  UniqueFd socket_;
  std::uint16_t port_ = 0;
};

/// A connection to `port` of 127.0.0.1. Throws std::runtime_error.
UniqueFd connect_loopback(std::uint16_t port);

/// Forwards bytes, both ways, between its own port and `target_port`. Thread-safe.
class TcpRelay {
 public:
  explicit TcpRelay(std::uint16_t target_port);
  ~TcpRelay();

  std::uint16_t port() const { return listener_.port(); }

  /// Resets every connection now, and every later one.
  void cut();

  /// As cut(), once `bytes` more have come from the connecting side.
  void cut_after(std::int64_t bytes);

  /// Resets every current connection; later ones pass.
  void cut_once();

  /// As cut_once(), once `bytes` more have come from the connecting side. Replaces a pending cut.
  void cut_once_after(std::int64_t bytes);

  /// Reads nothing more from either side, and sends nothing: connections stay open.
  void stall();

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  struct Link {
    UniqueFd left;
    UniqueFd right;
    unsigned generation = 0;  ///< cuts before it
    std::thread thread;
  };

  void accept_all();
  void relay(Link& link);
  bool pass(const Link& link, int from, int to);
  std::int64_t count(const Link& link, std::int64_t size);
  bool is_cut(const Link& link) const { return cut_ || link.generation != generation_; }

  LoopbackListener listener_;
  std::uint16_t target_port_;
  UniqueFd wake_;                  ///< an eventfd that stays readable once the state has changed
  std::atomic<bool> cut_ = false;  ///< permanently
  std::atomic<unsigned> generation_ = 0;  ///< cuts of the connections at that time
  std::atomic<bool> stalled_ = false;
  std::atomic<bool> ending_ = false;
  std::mutex mutex_;
  std::int64_t left_ = kNever;  ///< bytes until the next cut; guarded by mutex_
  bool for_good_ = false;       ///< the next cut; guarded by mutex_
  std::list<Link> links_;       ///< guarded by mutex_
  std::thread acceptor_;
};

}  // namespace gcr::test
