// This project's declarations of the driver's interface compared with cuda.h, fact by fact.
#include <gtest/gtest.h>

#include "tests/preload/table/abi_facts.h"

namespace gcr::preload {
namespace {

TEST(DriverAbi, MatchesCudaH) {
  const std::vector<AbiFact> ours = abi_facts_ours();
  const std::vector<AbiFact> theirs = abi_facts_theirs();
  ASSERT_EQ(ours.size(), theirs.size());
  ASSERT_GT(ours.size(), 250u);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_STREQ(ours[i].what, theirs[i].what);
    EXPECT_EQ(ours[i].value, theirs[i].value) << ours[i].what;
  }
}

}  // namespace
}  // namespace gcr::preload
