// This project's declarations of the HIP interface compared with the headers of HIP 5.2, fact by
// fact; later ones with the sizes of the headers of ROCm 6.2.
#include <gtest/gtest.h>

#include "preload/hip/abi/hip_abi.h"
#include "tests/preload/table/abi_facts.h"

// Every row's types are declared, also those of later releases.
extern "C" {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  result symbol params;
#include "preload/hip/hip_api.def"
}

namespace gcr::preload {
namespace {

// As the headers of ROCm 6.2 have them.
static_assert(sizeof(hipDeviceProp_tR0600) == 1472);
static_assert(offsetof(hipDeviceProp_tR0600, uuid) == 256);
static_assert(offsetof(hipDeviceProp_tR0600, totalGlobalMem) == 288);
static_assert(offsetof(hipDeviceProp_tR0600, warpSize) == 308);
static_assert(offsetof(hipDeviceProp_tR0600, multiProcessorCount) == 388);
static_assert(offsetof(hipDeviceProp_tR0600, pciBusID) == 584);
static_assert(offsetof(hipDeviceProp_tR0600, gcnArchName) == 1160);
static_assert(offsetof(hipDeviceProp_tR0600, asicRevision) == 1468);
static_assert(sizeof(hipMemAllocationPropR0503) == 32);
static_assert(offsetof(hipMemAllocationPropR0503, requestedHandleTypes) == 4);
static_assert(offsetof(hipMemAllocationPropR0503, location) == 8);
static_assert(offsetof(hipMemAllocationPropR0503, allocFlags) == 24);
static_assert(sizeof(hipMemAllocNodeParams) == 120);
static_assert(sizeof(hipGraphNodeParams) == 256);
static_assert(offsetof(hipGraphNodeParams, alloc) == 16);
static_assert(offsetof(hipGraphNodeParams, reserved2) == 248);

TEST(HipAbi, MatchesTheHeadersOfHip52) {
#ifdef GCR_HIP_HEADERS
  const std::vector<AbiFact> ours = abi_facts_ours();
  const std::vector<AbiFact> theirs = abi_facts_theirs();
  ASSERT_EQ(ours.size(), theirs.size());
  ASSERT_GT(ours.size(), 250u);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_STREQ(ours[i].what, theirs[i].what);
    EXPECT_EQ(ours[i].value, theirs[i].value) << ours[i].what;
  }
#else
  GTEST_SKIP() << "nothing to compare with: HIP 5.2's headers (libamdhip64-dev) are not installed";
#endif
}

}  // namespace
}  // namespace gcr::preload
