// The request to AMD's driver, compared with the kernel's own declaration where that can be
// included.
#include <gtest/gtest.h>
#if __has_include(<drm/drm.h>) && __has_include(<linux/kfd_ioctl.h>)
#include <linux/kfd_ioctl.h>
#endif

#include <cstddef>

#include "migrate-agent/criu/runs/paused_queues.h"

namespace gcr::criu::test {
namespace {

TEST(KfdRequest, MatchesTheKernelHeader) {
  EXPECT_EQ(kKfdCriuOp, 0xc0384b22UL);
  EXPECT_EQ(offsetof(KfdRequest, device_count), 32U);
  EXPECT_EQ(offsetof(KfdRequest, op), 48U);
#ifdef AMDKFD_IOC_CRIU_OP
  EXPECT_EQ(kKfdCriuOp, static_cast<unsigned long>(AMDKFD_IOC_CRIU_OP));
  EXPECT_EQ(kKfdUnpause, static_cast<std::uint32_t>(KFD_CRIU_OP_UNPAUSE));
  EXPECT_EQ(sizeof(KfdRequest), sizeof(kfd_ioctl_criu_args));
  EXPECT_EQ(offsetof(KfdRequest, op), offsetof(kfd_ioctl_criu_args, op));
#endif
}

}  // namespace
}  // namespace gcr::criu::test
