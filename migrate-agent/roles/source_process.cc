#include "migrate-agent/roles/source_process.h"

namespace gcr::agent {
namespace {

/// A gate that an agent closed and forgot opens by itself after this, unless VRAM was detached.
constexpr std::chrono::seconds kGateLease{30};

}  // namespace

Status SourceProcess::close_gate(std::chrono::milliseconds timeout) {
  GCR_TRY(door_.close_gate(timeout, kGateLease));
  state_ = State::kGated;
  return {};
}

Status SourceProcess::open_gate() {
  GCR_TRY(door_.open_gate());
  state_ = State::kRunning;
  return {};
}

Status SourceProcess::detach() {
  GCR_TRY(door_.detach());
  state_ = State::kDetached;
  return {};
}

Status SourceProcess::lock(std::chrono::milliseconds timeout) {
  GCR_TRY(control_.lock(timeout));
  state_ = State::kLocked;
  return {};
}

Status SourceProcess::checkpoint() {
  GCR_TRY(control_.checkpoint());
  state_ = State::kCheckpointed;
  return {};
}

Result<criu::DumpReport> SourceProcess::dump(criu::PreparedDump& prepared,
                                             const criu::TakeImage& take) {
  auto dumped = prepared.run(take);
  if (dumped) state_ = State::kDumped;
  return dumped;
}

Status SourceProcess::roll_back(mover::Descriptors vram) {
  if (state_ == State::kDumped) {
    GCR_TRY(criu::resume_stopped(pid_));
    state_ = State::kCheckpointed;
  }
  if (state_ == State::kCheckpointed) {
    GCR_TRY(control_.restore({}));
    state_ = State::kLocked;
  }
  if (state_ == State::kLocked) {
    GCR_TRY(control_.unlock());
    state_ = State::kDetached;
  }
  if (state_ == State::kDetached) {
    GCR_TRY(door_.offer(std::move(vram)));
    GCR_TRY(door_.attach());
    state_ = State::kGated;
  }
  if (state_ == State::kGated) GCR_TRY(open_gate());
  return {};
}

Status SourceProcess::kill() { return criu::kill_stopped(pid_); }

}  // namespace gcr::agent
