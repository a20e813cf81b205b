// What the digest of an image must not reveal or accept.
#include "migrate-agent/transfer/images/image_digest.h"

#include <gtest/gtest.h>

#include <vector>

namespace gcr::images {
namespace {

using Pages = std::vector<std::byte>;

class ImageDigestTest : public testing::Test {
 protected:
  static BlockHeader window(std::uint64_t number) {
    BlockHeader header;
    header.offset = number * kWindowBytes;
    header.raw_bytes = header.stored_bytes = kPageBytes;
    header.codec = store::Codec::kNone;
    header.present.set(0);
    return header;
  }

  ImageDigest digest(std::uint64_t number, const Pages& pages) const {
    return *digester_.digest(window(number), pages);
  }

  const WindowDigester digester_{std::array<std::byte, 32>{}};
};

/// How much a change of the same bits changes the digests of two windows: if it were equal, the sum
/// of both would stay the same with a probability of 2^-52.
TEST_F(ImageDigestTest, EqualChangesAffectDigestsDifferently) {
  const Pages before(kPageBytes, std::byte{'a'});
  Pages after = before;
  after[100] ^= std::byte{4};
  for (const std::uint64_t other : {1, 2, 1000}) {
    const ImageDigest one[] = {digest(0, before), digest(0, after)};
    const ImageDigest two[] = {digest(other, before), digest(other, after)};
    for (const std::size_t word : {0, 1}) {
      EXPECT_NE(one[0].words[word] ^ one[1].words[word], two[0].words[word] ^ two[1].words[word]);
    }
  }
}

TEST_F(ImageDigestTest, DigestDependsOnTheWindowsAddress) {
  const Pages pages(kPageBytes, std::byte{'a'});
  EXPECT_NE(digest(0, pages), digest(1, pages));
}

TEST_F(ImageDigestTest, DigestDependsOnTheRound) {
  const Pages pages(kPageBytes, std::byte{'a'});
  BlockHeader later = window(0);
  later.round = 1;
  EXPECT_NE(digest(0, pages), *digester_.digest(later, pages));
}

/// A window that is repeated 2^k times must not lose k bits of each word.
TEST_F(ImageDigestTest, SumCarriesBetweenWords) {
  ImageDigest sum{{~std::uint64_t{0}, 7}};
  sum += ImageDigest{{1, 0}};
  EXPECT_EQ(sum, (ImageDigest{{0, 8}}));
}

}  // namespace
}  // namespace gcr::images
