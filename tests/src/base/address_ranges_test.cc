#include "src/base/address_ranges.h"

#include <gtest/gtest.h>

namespace gcr::test {
namespace {

const AddressRanges kOne{{2, 5}, {8, 12}, {20, 30}};
const AddressRanges kOther{{0, 3}, {4, 9}, {12, 20}, {22, 23}, {25, 40}};

TEST(AddressRangesTest, IntersectionIsInBoth) {
  EXPECT_EQ(intersection(kOne, kOther),
            (AddressRanges{{2, 3}, {4, 5}, {8, 9}, {22, 23}, {25, 30}}));
  EXPECT_EQ(intersection(kOther, kOne), intersection(kOne, kOther));
  EXPECT_EQ(intersection({{0, 9}}, {{0, 4}, {4, 9}}), (AddressRanges{{0, 4}, {4, 9}}));
  EXPECT_EQ(intersection(kOne, {}), AddressRanges());
}

TEST(AddressRangesTest, DifferenceIsOnlyInTheFirst) {
  EXPECT_EQ(difference(kOne, kOther), (AddressRanges{{3, 4}, {9, 12}, {20, 22}, {23, 25}}));
  EXPECT_EQ(difference(kOther, kOne), (AddressRanges{{0, 2}, {5, 8}, {12, 20}, {30, 40}}));
  EXPECT_EQ(difference(kOne, {}), kOne);
  EXPECT_EQ(difference({}, kOne), AddressRanges());
  EXPECT_EQ(difference({{0, 10}, {10, 20}}, {{5, 15}}), (AddressRanges{{0, 5}, {15, 20}}));
}

TEST(AddressRangesTest, UnionIsInEither) {
  EXPECT_EQ(united(kOne, kOther), (AddressRanges{{0, 40}}));
  EXPECT_EQ(united({{0, 2}}, {{1, 3}, {5, 6}}), (AddressRanges{{0, 3}, {5, 6}}));
  EXPECT_EQ(united({}, kOne), kOne);
  EXPECT_EQ(bytes_of(kOne), 17u);
}

}  // namespace
}  // namespace gcr::test
