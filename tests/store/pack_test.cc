// Packs with wrong bytes, and places in them.
#include <random>

#include "src/base/little_endian.h"
#include "tests/store/support.h"

namespace gcr::store::test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class PackFile : public Store {
 protected:
  void SetUp() override { manifest_ = take("first", {noise(1), noise(2), noise(3)}); }

  Status verified() const {
    const auto done = verify(directory(), manifest_);
    return done ? Status() : done.error();
  }

  proto::Manifest manifest_;
};

TEST_F(PackFile, AlteredContentIsNoticed) {
  Bytes pack = read_file(packs().front());
  pack[kPackHeaderBytes + 1'000] ^= std::byte{1};
  write_file(packs().front(), pack);
  const Status done = verified();
  EXPECT_EQ(done.error().code(), Code::kDataLoss);
  EXPECT_THAT(done.error().message(), HasSubstr("of first is lost"));
}

TEST_F(PackFile, SwappedContentsAreNoticed) {
  const auto files = packs();
  const auto largest = std::ranges::max_element(
      files, {}, [](const auto& pack) { return std::filesystem::file_size(pack); });
  Bytes pack = read_file(*largest);
  const auto first = pack.begin() + kPackHeaderBytes;
  std::swap_ranges(first, first + kChunkBytes, first + kChunkBytes);
  write_file(*largest, pack);
  EXPECT_EQ(verified().error().code(), Code::kDataLoss);
}

TEST_F(PackFile, MissingPackIsNoticed) {
  std::filesystem::remove(packs().front());
  EXPECT_EQ(verified().error().code(), Code::kDataLoss);
  const auto listed = list(directory(), tls_).value();
  ASSERT_THAT(listed, SizeIs(1));
  ASSERT_TRUE(listed[0].problem);
  EXPECT_THAT(listed[0].problem->message(), HasSubstr("of the 3 contents of first are missing"));
}

TEST_F(PackFile, TruncatedPackIsIgnored) {
  const auto file = packs().front();
  const Bytes pack = read_file(file);
  const std::size_t from_end = 3 * kIndexEntryBytes + kPackEndBytes;
  for (std::size_t cut = 1; cut < pack.size(); cut += cut < from_end ? 1 : kChunkBytes / 3) {
    write_file(file, std::span(pack).first(pack.size() - cut));
    const auto opened = Packs::open(directory()).value();
    ASSERT_THAT(opened->packs(), SizeIs(packs().size() - 1)) << cut;
    ASSERT_THAT(opened->others(), SizeIs(1)) << cut;
  }
}

TEST_F(PackFile, AlteredIndexIsIgnored) {
  const auto file = packs().front();
  const Bytes pack = read_file(file);
  for (std::size_t at = pack.size() - kIndexEntryBytes - kPackEndBytes; at < pack.size(); ++at) {
    Bytes altered = pack;
    altered[at] ^= std::byte{1};
    write_file(file, altered);
    ASSERT_THAT(Packs::open(directory()).value()->packs(), SizeIs(packs().size() - 1)) << at;
  }
}

TEST_F(PackFile, LostContentIsWrittenAgain) {
  for (const auto& pack : packs()) std::filesystem::remove(pack);
  const proto::Manifest second = take("second", {noise(1), noise(2)});
  EXPECT_EQ(second.new_bytes(), 2 * kChunkBytes);
  expect_has("second", {noise(1), noise(2)});
}

TEST_F(PackFile, OneGoodCopyIsEnough) {
  const auto opened = Packs::open(directory()).value();
  const Bytes original = read_file(packs().front());
  const auto copy = path_ / pack_file_of(Uuid{}, 0);  // the first by name
  Bytes altered = original;
  altered[kPackHeaderBytes] ^= std::byte{1};
  write_file(copy, altered);
  EXPECT_TRUE(verified());
}

TEST_F(PackFile, ForgedIndexIsRefused) {
  const PackEnd end{.index_offset = kPackHeaderBytes + kChunkBytes, .entries = 1, .index_sum = {}};
  const auto check = [&](const Location& location) {
    std::map<ContentName, Location> index{{ContentName{}, location}};
    const auto bytes = encode_index(index, end.index_offset);
    const auto parsed_end =
        parse_pack_end(std::span(bytes).last(kPackEndBytes), end.index_offset + bytes.size());
    return parse_index(std::span(bytes).first(kIndexEntryBytes), parsed_end.value()).has_value();
  };
  const Location good{.offset = kPackHeaderBytes, .stored_bytes = 5, .raw_bytes = 5};
  EXPECT_TRUE(check(good));
  const auto with = [&](auto change) {
    Location location = good;
    change(location);
    return check(location);
  };
  EXPECT_FALSE(with([](Location& at) { at.offset = 0; }));
  EXPECT_FALSE(with([](Location& at) { at.offset += 1; }));
  EXPECT_FALSE(with([](Location& at) { at.offset = ~std::uint64_t{511}; }));
  EXPECT_FALSE(with([](Location& at) { at.offset += kChunkBytes; }));
  EXPECT_FALSE(with([](Location& at) { at.stored_bytes = at.raw_bytes = kMaxContentBytes + 1; }));
  EXPECT_FALSE(with([](Location& at) { at.stored_bytes = at.raw_bytes = 0; }));
  EXPECT_FALSE(with([](Location& at) { at.raw_bytes = 6; }));
  EXPECT_FALSE(with([](Location& at) { at.codec = store::Codec::kZstd; }));
  EXPECT_FALSE(with([](Location& at) { at.codec = static_cast<store::Codec>(4); }));
}

TEST_F(PackFile, ExcessiveCountsAreNotAllocated) {
  std::array<std::byte, kPackEndBytes> end{};
  std::ranges::copy(std::as_bytes(std::span("GCRINDX1", 8)), end.begin());
  store_little_endian(&end[8], kPackHeaderBytes);
  const std::uint64_t entries = kMaxPackEntries + 1;
  store_little_endian(&end[16], entries);
  const std::uint64_t file_bytes = kPackHeaderBytes + entries * kIndexEntryBytes + kPackEndBytes;
  EXPECT_FALSE(parse_pack_end(end, file_bytes));
  store_little_endian(&end[16], (~std::uint64_t{0} / kIndexEntryBytes) + 1);  // 64 times it is 0
  EXPECT_FALSE(parse_pack_end(end, kPackHeaderBytes + kPackEndBytes));
}

TEST(FreePlaces, NeverOverlapAndAreReused) {
  FreePlaces places(kPackHeaderBytes);
  std::mt19937 random(7);
  std::map<std::uint64_t, std::uint64_t> taken;
  for (int step = 0; step < 5'000; ++step) {
    if (taken.size() < 20 || random() % 2 == 0) {
      const std::uint64_t bytes = (1 + random() % 8) * kPlaceBytes;
      const std::uint64_t offset = places.allocate(bytes);
      const auto next = taken.lower_bound(offset);
      ASSERT_TRUE(next == taken.end() || offset + bytes <= next->first);
      ASSERT_TRUE(next == taken.begin() ||
                  std::prev(next)->first + std::prev(next)->second <= offset);
      ASSERT_LE(offset + bytes, places.end());
      taken[offset] = bytes;
    } else {
      const auto one = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      places.release(one->first, one->second);
      taken.erase(one);
    }
  }
  for (const auto& [offset, bytes] : taken) places.release(offset, bytes);
  EXPECT_EQ(places.end(), kPackHeaderBytes);
  EXPECT_TRUE(places.holes().empty());
}

}  // namespace
}  // namespace gcr::store::test
