// The receiver's lanes, the connection that serves each, and how much of each has landed. A lane
// outlives its connections.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/result.h"
#include "src/base/uuid.h"
#include "transport/tcp/frame.h"

namespace gcr::transport {

/// Thread-safe. Outlives every Hold it gave.
class LaneTable {
  struct Lane;

 public:
  /// The right to serve a lane: one connection has it at a time. Move-only; the lane counts as lost
  /// when it is given back before finish().
  class Hold {
   public:
    Hold(Hold&& other) noexcept
        : table_(std::exchange(other.table_, nullptr)), lane_(other.lane_) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (table_ != nullptr) table_->give_back(*lane_);
    }

    /// How many write frames of the lane have landed.
    std::uint64_t landed() const;
    void count_landed();

    /// The sender has ended the transfer: the receiver waits for none of its lanes any more.
    void finish() { table_->finish(); }

    /// Why the lane will be lost when this is given back.
    void lose(const Error& why) { table_->set_reason(*lane_, why); }

   private:
    friend class LaneTable;
    Hold(LaneTable* table, Lane* lane) : table_(table), lane_(lane) {}
    LaneTable* table_;
    Lane* lane_;
  };

  /// A sender has at most `max_lanes` lanes, each without a connection for at most `window`.
  LaneTable(unsigned max_lanes, std::chrono::milliseconds window)
      : max_lanes_(max_lanes), window_(window) {}

  /// Takes the lane that `hello` names; the first hello determines the only sender and how many
  /// lanes it has. The lane's present holder is ended with its `end`, and waited for. `end` must
  /// not block nor use the table; it may be called until the Hold is given back.
  ///
  /// Fails with kPermissionDenied for another sender, kProtocol for impossible numbers,
  /// kResourceExhausted for too many lanes, kUnavailable if a newer call takes the lane, and
  /// kCancelled after cancel().
  Result<Hold> take(const Hello& hello, std::function<void()> end);

  /// Fails with kUnavailable once a lane was without a connection for too long.
  Status check() const;

  /// Ends calls of take, now and later.
  void cancel();

  unsigned held() const;
  std::uint64_t reconnections() const;

 private:
  struct Lane {
    std::uint64_t landed = 0;   ///< belongs to the holder
    std::uint64_t claims = 0;   ///< calls of take
    std::function<void()> end;  ///< of the holder; empty: there is none
    std::optional<Error> lost;  ///< why it has no connection, since `lost_at`
    std::chrono::steady_clock::time_point lost_at;
  };

  Result<Lane*> find(const Hello& hello);
  void give_back(Lane& lane);
  void finish();
  void set_reason(Lane& lane, const Error& why);

  const unsigned max_lanes_;
  const std::chrono::milliseconds window_;
  mutable std::mutex mutex_;
  std::condition_variable given_back_;
  std::optional<Uuid> session_;  ///< guarded by mutex_, as all that follows
  std::vector<Lane> lanes_;      ///< of the one sender; fixed once it is known
  std::uint64_t reconnections_ = 0;
  bool finished_ = false;
  bool cancelled_ = false;
};

}  // namespace gcr::transport
