#include "src/base/users.h"

#include <gtest/gtest.h>

namespace gcr {
namespace {

constexpr uid_t kUnnamed = 424242;  // no host has a name for it

TEST(Users, HaveTheHostsNames) {
  EXPECT_EQ(user_name(0), "root");
  EXPECT_EQ(group_name(0), "root");
  EXPECT_EQ(describe_user(0), "root");
  EXPECT_EQ(user_id("root"), 0u);
}

TEST(Users, WithoutANameHaveTheirNumber) {
  EXPECT_EQ(user_name(kUnnamed), "");
  EXPECT_EQ(group_name(kUnnamed), "");
  EXPECT_EQ(describe_user(kUnnamed), "uid 424242");
  EXPECT_EQ(user_id("424242"), kUnnamed);
  EXPECT_EQ(user_id("no-such-user"), std::nullopt);
  EXPECT_EQ(user_id("42x"), std::nullopt);
  EXPECT_EQ(user_id(""), std::nullopt);
}

}  // namespace
}  // namespace gcr
