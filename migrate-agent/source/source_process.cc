#include "migrate-agent/source/source_process.h"

namespace gcr::agent {
namespace {

/// If the agent is gone, a closed gate opens by itself after this, unless VRAM was detached.
constexpr std::chrono::seconds kGateLease{30};

}  // namespace

Status SourceProcess::enter_group() {
  GCR_TRY(group_.create());
  return group_.add(process_);
}

Status SourceProcess::close_gate(std::chrono::milliseconds timeout) {
  gated_ = true;
  return access_->quiesce(timeout, kGateLease);
}

Status SourceProcess::open_gate() {
  GCR_TRY(access_->resume());
  gated_ = false;
  return {};
}

Status SourceProcess::detach() {
  detaching_ = true;
  return access_->detach();
}

Status SourceProcess::lock(std::chrono::milliseconds timeout) { return control_->lock(timeout); }

Status SourceProcess::checkpoint() { return control_->checkpoint(); }

Result<std::vector<proto::Credentials>> SourceProcess::dump(criu::PreparedDump& prepared,
                                                            const criu::TakeImage& take) {
  const bool by_criu = !group_.directory_for_criu().empty();
  if (by_criu) GCR_TRY(group_.freeze());
  auto dumped = prepared.run(take);
  if (!dumped) {
    if (by_criu) GCR_TRY(group_.thaw());
    return dumped;
  }
  dumped_ = true;
  GCR_TRY(group_.freeze());
  return dumped;
}

}  // namespace gcr::agent
