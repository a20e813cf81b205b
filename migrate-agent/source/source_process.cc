#include "migrate-agent/source/source_process.h"

namespace gcr::agent {
namespace {

/// If the agent is gone, a closed gate opens by itself after this, unless VRAM was detached.
constexpr std::chrono::seconds kGateLease{30};

}  // namespace

Status SourceProcess::enter_group(std::string home) {
  home_ = std::move(home);
  GCR_TRY(group_.create());
  return group_.add(process_);
}

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
  GCR_TRY(control_->lock(timeout));
  state_ = State::kLocked;
  return {};
}

Status SourceProcess::checkpoint() {
  GCR_TRY(control_->checkpoint());
  state_ = State::kCheckpointed;
  return {};
}

Result<criu::DumpReport> SourceProcess::dump(criu::PreparedDump& prepared,
                                             const criu::TakeImage& take) {
  const bool by_criu = !group_.directory_for_criu().empty();
  if (by_criu) GCR_TRY(group_.freeze());
  auto dumped = prepared.run(take);
  if (!dumped) {
    if (by_criu) GCR_TRY(group_.thaw());
    return dumped;
  }
  state_ = State::kDumped;
  GCR_TRY(group_.freeze());
  return dumped;
}

Status SourceProcess::roll_back(mover::Descriptors vram) {
  if (state_ == State::kDumped) {
    GCR_TRY(criu::resume_stopped(process_));
    GCR_TRY(group_.thaw());
    state_ = State::kCheckpointed;
  }
  if (state_ == State::kCheckpointed) {
    GCR_TRY(control_->restore({}));
    state_ = State::kLocked;
  }
  if (state_ == State::kLocked) {
    GCR_TRY(control_->unlock());
    state_ = State::kDetached;
  }
  if (state_ == State::kDetached) {
    GCR_TRY(door_.offer(std::move(vram)));
    GCR_TRY(door_.attach());
    state_ = State::kGated;
  }
  if (state_ == State::kGated) GCR_TRY(open_gate());
  return group_.dissolve(home_);
}

Status SourceProcess::kill() {
  GCR_TRY(criu::kill_stopped(process_, [this] { return group_.thaw(); }));
  return group_.dissolve(home_);
}

}  // namespace gcr::agent
