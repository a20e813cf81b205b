#include "migrate-agent/source/source_process.h"

#include <set>

namespace gcr::agent {
namespace {

/// If the agent is gone, a closed gate opens by itself after this, unless VRAM was detached.
constexpr std::chrono::seconds kGateLease{30};
/// Each finds only what processes have started that the look before it had not yet moved.
constexpr int kMostLooks = 100;

}  // namespace

Status SourceProcess::enter_group() {
  GCR_TRY(group_.create());
  GCR_TRY(group_.add(root_));
  // What is born in the group stays in it; what was born outside meanwhile, the next look finds.
  std::set<pid_t> moved{pid()};
  for (int look = 0; look < kMostLooks; ++look) {
    bool found_new = false;
    for (const procfs::Process& process : procfs::open_tree(root_)) {
      if (!moved.insert(process.pid()).second || group_.contains(process)) continue;
      found_new = true;
      const Status added = group_.add(process);
      if (!added && added.error().code() != Code::kNotFound) return added;
    }
    if (!found_new) return {};
  }
  return Error(Code::kTimeout, "its processes start others faster than they can be held together");
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
