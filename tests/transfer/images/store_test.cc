// How the store handles blocks and names, valid and invalid.
#include "migrate-agent/transfer/images/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "tests/transfer/images/support.h"

namespace gcr::images::test {
namespace {

class Store : public StoreFixture {
 protected:
  /// Puts a block with one page of `fill` into a slot; returns the result of landed().
  Status land(ImageStore& store, BlockHeader header, char fill = 'x', std::uint64_t slot = 0) {
    const auto ring = store.ring().subspan(slot * kSlotBytes, kSlotBytes);
    const BlockHeaderBytes bytes = encode(header);
    std::copy(bytes.begin(), bytes.end(), ring.begin());
    std::memset(&ring[kBlockHeaderBytes], fill, header.stored_bytes);
    const auto payload = ring.subspan(kBlockHeaderBytes, header.stored_bytes);
    if (const auto digest = digester_.digest(header, payload)) digests_[header.file] += *digest;
    return store.landed(slot * kSlotBytes, kBlockHeaderBytes + header.stored_bytes);
  }

  static BlockHeader one_page(std::uint32_t file, std::uint64_t window = 0) {
    BlockHeader header;
    header.file = file;
    header.offset = window * kWindowBytes;
    header.raw_bytes = header.stored_bytes = kPageBytes;
    header.codec = store::Codec::kNone;
    header.present.set(0);
    return header;
  }

  const WindowDigester digester_{std::array<std::byte, 32>{}};
  std::map<std::uint32_t, ImageDigest> digests_;  ///< of the landed data, by file

  static testing::AssertionResult refuses(const Status& status, Code code = Code::kProtocol) {
    if (status) return testing::AssertionFailure() << "it succeeded";
    if (status.error().code() == code) return testing::AssertionSuccess();
    return testing::AssertionFailure() << status.error().message();
  }
};

TEST_F(Store, FilesHaveTheirNamesAndSizes) {
  const auto store = make_store(2);
  ASSERT_TRUE(land(*store, one_page(3, 1), 'a'));
  ASSERT_TRUE(store->complete({{"pages-1.img", 3, 2 * kMiB, digests_[3]}, {"empty.img", 4, 0}}));
  std::string expected(2 * kMiB, '\0');
  expected.replace(kMiB, kPageBytes, kPageBytes, 'a');
  EXPECT_EQ(received("pages-1.img"), expected);
  EXPECT_EQ(received("empty.img"), "");
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / ".incoming"));
}

TEST_F(Store, RequestsRoomBeforeRefusing) {
  const ScratchDirectory directory = *ScratchDirectory::create(unique_path());
  std::uint64_t room = kPageBytes;
  const auto more = [&](std::uint64_t bytes) -> Result<std::uint64_t> {
    if (room > kPageBytes) return Error(Code::kResourceExhausted, "no more memory");
    return room += bytes;
  };
  const auto store = std::move(*ImageStore::create(directory.path(), 1, kPageBytes, {}, more));
  EXPECT_TRUE(land(*store, one_page(0, 0)));
  EXPECT_EQ(room, kPageBytes);
  EXPECT_TRUE(land(*store, one_page(0, 1)));
  EXPECT_EQ(room, 2 * kPageBytes);
  EXPECT_TRUE(refuses(land(*store, one_page(0, 2)), Code::kResourceExhausted));
}

TEST_F(Store, ReplacedPageNeedsNoMoreRoom) {
  const ScratchDirectory directory = *ScratchDirectory::create(unique_path());
  const auto store = std::move(*ImageStore::create(directory.path(), 1, kPageBytes));
  BlockHeader header = one_page(0);
  ASSERT_TRUE(land(*store, header, 'a'));
  header.round = 1;
  ASSERT_TRUE(land(*store, header, 'b'));
  const ImageDigest sent = digests_[0];
  EXPECT_TRUE(refuses(land(*store, one_page(0, 1)), Code::kResourceExhausted));
  ASSERT_TRUE(store->complete({{"memory-1-0.img", 0, kPageBytes, sent}}));
  std::ifstream file(directory.path() / "memory-1-0.img");
  EXPECT_EQ(file.get(), 'b');
}

TEST_F(Store, LostChangedOrRepeatedBlockIsFound) {
  const BlockHeader first = one_page(0, 0);
  const BlockHeader second = one_page(0, 1);
  const std::vector<std::byte> a(kPageBytes, std::byte{'a'});
  const std::vector<std::byte> b(kPageBytes, std::byte{'b'});
  ImageDigest sent = *digester_.digest(first, a);
  sent += *digester_.digest(second, b);
  const auto completes = [&](const std::vector<std::pair<BlockHeader, char>>& blocks) {
    const ScratchDirectory directory = *ScratchDirectory::create(unique_path());
    const auto store = std::move(*ImageStore::create(directory.path(), 1, kGiB));
    for (const auto& [header, fill] : blocks) EXPECT_TRUE(land(*store, header, fill));
    return store->complete({{"a.img", 0, 2 * kMiB, sent}});
  };
  EXPECT_TRUE(completes({{first, 'a'}, {second, 'b'}}));
  EXPECT_TRUE(completes({{second, 'b'}, {first, 'a'}}));
  EXPECT_TRUE(refuses(completes({{first, 'a'}}), Code::kDataLoss));
  EXPECT_TRUE(refuses(completes({{first, 'a'}, {second, 'c'}}), Code::kDataLoss));
  EXPECT_TRUE(refuses(completes({{first, 'b'}, {second, 'a'}}), Code::kDataLoss));
  EXPECT_TRUE(refuses(completes({{first, 'a'}, {second, 'b'}, {second, 'b'}}), Code::kDataLoss));
}

TEST_F(Store, ForeignNamesAreRefused) {
  const auto store = make_store(1);
  for (const char* name :
       {"", ".", "..", ".img", "../x.img", "a/b.img", "/etc/x.img", ".hidden.img", "a b.img",
        "a\nb.img", "parent", "x.log", "pre-1", "pre-1/a.img", "pre-1/../a.img", "prefix/a.img"}) {
    EXPECT_TRUE(refuses(store->complete({{name, 0, 10}}))) << name;
  }
  const std::filesystem::directory_iterator entries(directory_.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);  // that of files without a name
}

TEST_F(Store, RepeatedNameOrIdIsRefused) {
  EXPECT_TRUE(refuses(make_store(1)->complete({{"a.img", 0, 1}, {"a.img", 1, 1}})));
  const ScratchDirectory other = *ScratchDirectory::create(unique_path());
  const auto store = ImageStore::create(other.path(), 1, kGiB);
  EXPECT_TRUE(refuses((*store)->complete({{"a.img", 0, 1}, {"b.img", 0, 1}})));
}

TEST_F(Store, BlocksOfANamelessFileAreRefused) {
  const auto store = make_store(1);
  ASSERT_TRUE(land(*store, one_page(3)));
  EXPECT_TRUE(refuses(store->complete({{"a.img", 0, 1}})));
}

TEST_F(Store, FileSmallerThanItsBlocksIsRefused) {
  const auto store = make_store(1);
  ASSERT_TRUE(land(*store, one_page(0)));
  EXPECT_TRUE(refuses(store->complete({{"a.img", 0, kPageBytes - 1, digests_[0]}})));
}

TEST_F(Store, ExcessiveSizeIsRefused) {
  const auto store = make_store(1);
  EXPECT_TRUE(refuses(store->complete({{"a.img", 0, ~std::uint64_t{0}}})));
  EXPECT_TRUE(refuses(store->complete({{"a.img", 0, kMaxFileBytes + 1}})));
}

TEST_F(Store, ImageMayBeAsLargeAsTheAddressSpace) {
  const auto store = make_store(1);
  ASSERT_TRUE(land(*store, one_page(0, kMaxFileBytes / kWindowBytes - 1)));
  ASSERT_TRUE(store->complete({{"memory-123.img", 0, kMaxFileBytes, digests_[0]}}));
  EXPECT_EQ(std::filesystem::file_size(directory_.path() / "memory-123.img"), kMaxFileBytes);
}

TEST_F(Store, MalformedBlocksAreRefused) {
  const auto store = make_store(2);
  ASSERT_TRUE(land(*store, one_page(0)));
  const std::uint64_t whole = kBlockHeaderBytes + kPageBytes;
  EXPECT_TRUE(refuses(store->landed(1, whole)));
  EXPECT_TRUE(refuses(store->landed(0, whole - 1)));
  EXPECT_TRUE(refuses(store->landed(0, whole + 1)));
  EXPECT_TRUE(refuses(store->landed(0, 0)));
  EXPECT_TRUE(refuses(store->landed(0, kBlockHeaderBytes - 1)));
  EXPECT_TRUE(refuses(store->landed(0, kSlotBytes + 1)));
  EXPECT_TRUE(refuses(store->landed(2 * kSlotBytes, whole)));
  EXPECT_TRUE(refuses(store->landed(~std::uint64_t{0} / kSlotBytes * kSlotBytes, whole)));
  EXPECT_TRUE(refuses(store->landed(kSlotBytes, whole)));  // nothing was written there
}

TEST_F(Store, CompressedNoiseIsRefused) {
  const auto store = make_store(1);
  BlockHeader header = one_page(0);
  header.stored_bytes = 100;
  for (const store::Codec codec : {store::Codec::kLz4, store::Codec::kZstd}) {
    header.codec = codec;
    EXPECT_TRUE(refuses(land(*store, header, '\x7f'), Code::kDataLoss));
  }
}

TEST_F(Store, NumberOfPagesIsLimited) {
  const auto store = make_store(1, 2 * kPageBytes);
  EXPECT_TRUE(land(*store, one_page(0)));
  EXPECT_TRUE(land(*store, one_page(1)));
  EXPECT_TRUE(refuses(land(*store, one_page(2)), Code::kResourceExhausted));
}

/// Returns 0 if the directory was removed although every descriptor but its own was taken when it
/// ended.
int remove_without_descriptors(const std::filesystem::path& path) {
  {
    const auto directory = ScratchDirectory::create(path);
    if (!directory || !std::filesystem::create_directories(path / "below")) return 2;
    while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) continue;
    if (errno != EMFILE) return 3;
  }
  return std::filesystem::exists(path) ? 1 : 0;
}

TEST_F(Store, DirectoryIsRemovedWithoutADescriptor) {
  EXPECT_EXIT(::_exit(remove_without_descriptors(unique_path())), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gcr::images::test
