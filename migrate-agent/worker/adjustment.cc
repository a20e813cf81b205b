#include "migrate-agent/worker/adjustment.h"

namespace gcr::agent {
namespace {

constexpr double kLeastDowntimeLimitMs = 1;
constexpr double kMostDowntimeLimitMs = 3'600'000;

}  // namespace

Result<registry::Adjust> adjustment_of(const proto::AdjustRequest& request) {
  registry::Adjust wanted;
  if (!request.has_max_bandwidth_bytes() && !request.has_downtime_limit_ms()) {
    return Error(Code::kInvalidArgument, "there is nothing to change");
  }
  if (request.has_max_bandwidth_bytes()) {
    wanted.set_max_bandwidth_bytes(request.max_bandwidth_bytes());
  }
  if (request.has_downtime_limit_ms()) {
    const double limit_ms = request.downtime_limit_ms();
    // Written so that NaN is refused too.
    if (!(limit_ms >= kLeastDowntimeLimitMs && limit_ms <= kMostDowntimeLimitMs)) {
      return Error(Code::kInvalidArgument, "a downtime limit is 1 ms to an hour");
    }
    wanted.set_downtime_limit_ms(limit_ms);
  }
  return wanted;
}

}  // namespace gcr::agent
