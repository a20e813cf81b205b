#include "transport/tcp/lane_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace gcr::transport {

std::uint64_t LaneTable::Hold::landed() const { return lane_->landed; }
void LaneTable::Hold::count_landed() { ++lane_->landed; }

/// The lane of `hello`. mutex_ is held.
Result<LaneTable::Lane*> LaneTable::find(const Hello& hello) {
  if (!session_) {
    if (hello.lanes > max_lanes_) {
      return Error(Code::kResourceExhausted,
                   fmt::format("this transfer takes {} lanes, not {}", max_lanes_, hello.lanes));
    }
    session_ = hello.session;
    lanes_.resize(hello.lanes);
  }
  if (*session_ != hello.session) {
    return Error(Code::kPermissionDenied, "this transfer has another sender");
  }
  if (hello.lanes != lanes_.size() || hello.lane >= lanes_.size()) {
    return Error(Code::kProtocol, fmt::format("lane {} of {} is none of this sender's {}",
                                              hello.lane, hello.lanes, lanes_.size()));
  }
  return &lanes_[hello.lane];
}

Result<LaneTable::Hold> LaneTable::take(const Hello& hello, std::function<void()> end) {
  std::unique_lock lock(mutex_);
  GCR_ASSIGN(Lane* const lane, find(hello));
  const std::uint64_t claim = ++lane->claims;
  given_back_.notify_all();  // an older claim gives way
  if (lane->end) lane->end();
  given_back_.wait(lock, [&] { return !lane->end || lane->claims != claim || cancelled_; });
  if (cancelled_) return Error(Code::kCancelled, "the transfer was cancelled");
  if (lane->claims != claim) {
    return Error(Code::kUnavailable, "a newer connection takes this one's place");
  }
  if (lane->lost) ++reconnections_;
  lane->lost.reset();
  lane->end = std::move(end);
  return Hold(this, lane);
}

void LaneTable::give_back(Lane& lane) {
  const std::lock_guard lock(mutex_);
  lane.end = nullptr;
  lane.lost_at = std::chrono::steady_clock::now();
  if (!lane.lost) lane.lost = Error(Code::kUnavailable, "the connection has ended");
  given_back_.notify_all();
}

void LaneTable::finish() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
}

void LaneTable::set_reason(Lane& lane, const Error& why) {
  const std::lock_guard lock(mutex_);
  lane.lost = why;
}

Status LaneTable::check() const {
  const std::lock_guard lock(mutex_);
  if (finished_) return {};
  const auto now = std::chrono::steady_clock::now();
  for (const Lane& lane : lanes_) {
    if (!lane.lost || lane.end || now - lane.lost_at < window_) continue;
    return lane.lost->while_doing(
        fmt::format("lane {} of {} has lost its connection and got no other within {} ms",
                    &lane - &lanes_.front(), lanes_.size(), window_.count()));
  }
  return {};
}

void LaneTable::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  given_back_.notify_all();
}

unsigned LaneTable::held() const {
  const std::lock_guard lock(mutex_);
  return static_cast<unsigned>(
      std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return bool(lane.end); }));
}

std::uint64_t LaneTable::reconnections() const {
  const std::lock_guard lock(mutex_);
  return reconnections_;
}

}  // namespace gcr::transport
