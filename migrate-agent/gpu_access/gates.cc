#include "migrate-agent/gpu_access/gates.h"

#include <fmt/format.h>

#include "src/base/side_by_side.h"

namespace gcr::agent {
namespace {

Status named(const Gates::Member& member, const Status& status) {
  if (status) return status;
  return status.error().while_doing(fmt::format("process {}", member.pid));
}

}  // namespace

Status Gates::quiesce(Milliseconds timeout, Milliseconds lease) {
  const Status closed = side_by_side(members_, [&](const Member& member) {
    const Status one = member.gate->quiesce(timeout, lease);
    return members_.size() == 1 ? one : named(member, one);
  });
  // A gate that did not close is open, and opening it again changes nothing.
  if (!closed && members_.size() > 1) (void)resume();
  return closed;
}

Status Gates::resume() {
  return side_by_side(members_, [&](const Member& member) {
    const Status one = member.gate->resume();
    return members_.size() == 1 ? one : named(member, one);
  });
}

}  // namespace gcr::agent
