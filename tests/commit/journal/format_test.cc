// The bytes of a file, without a file: after a crash, after damage, and arbitrary ones.
#include "migrate-agent/commit/journal/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "migrate-agent/commit/journal/text.h"
#include "tests/commit/journal/support.h"

namespace gcr::journal::test {
namespace {

using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

Record began() {
  Record record;
  *record.mutable_began() = source_began();
  record.mutable_began()->set_migration_id(std::string(16, 'x'));
  record.mutable_began()->set_role(Began::SOURCE);
  return record;
}

Bytes file_with(const std::vector<Record>& records) {
  Bytes file(kFileBytes);
  Sealed sealed = header();
  auto end = std::ranges::copy(sealed.slot, file.begin()).out;
  for (const Record& record : records) {
    sealed = seal(record, sealed.checksum).value();
    end = std::ranges::copy(sealed.slot, end).out;
  }
  return file;
}

const std::vector<Record> kThree{began(), keeper_started(5), committed()};
constexpr std::size_t kThreeBytes = 4 * kSlotBytes;

bool is_good(const Contents& contents) { return !contents.torn && !contents.damage; }

bool starts_as(const Contents& contents, const std::vector<Record>& records) {
  return contents.records.size() <= records.size() &&
         std::ranges::equal(contents.records, std::span(records).first(contents.records.size()), {},
                            &Record::SerializeAsString, &Record::SerializeAsString);
}

std::string damage_of(const Bytes& file) {
  const Contents contents = parse(file);
  return contents.damage ? contents.damage->message() : "";
}

TEST(Format, RecordsSurviveARoundTrip) {
  const Contents contents = parse(file_with(kThree));
  EXPECT_TRUE(is_good(contents));
  EXPECT_EQ(contents.records.size(), 3u);
  EXPECT_TRUE(starts_as(contents, kThree));
}

TEST(Format, FileCanBeFull) {
  std::vector<Record> records(kSlots - 1, keeper_started(7));
  records.front() = began();
  const Contents contents = parse(file_with(records));
  EXPECT_TRUE(is_good(contents));
  EXPECT_EQ(contents.records.size(), kSlots - 1);
}

TEST(Format, PartlyWrittenRecordIsTorn) {
  const Bytes whole = file_with(kThree);
  for (std::size_t end = kThreeBytes - kSlotBytes + 1; end < kThreeBytes; ++end) {
    Bytes file = whole;
    std::fill(file.begin() + static_cast<std::ptrdiff_t>(end), file.end(), std::byte{0});
    const Contents contents = parse(file);
    ASSERT_TRUE(contents.torn && !contents.damage) << end;
    ASSERT_EQ(contents.records.size(), 2u) << end;
  }
}

TEST(Format, RecordWithoutItsFirstBytesIsTorn) {
  Bytes file = file_with(kThree);
  std::fill_n(file.end() - static_cast<std::ptrdiff_t>(kFileBytes - kThreeBytes + kSlotBytes), 512,
              std::byte{0});
  const Contents contents = parse(file);
  EXPECT_TRUE(contents.torn && !contents.damage);
  EXPECT_EQ(contents.records.size(), 2u);
}

TEST(Format, IncompleteRecordBeforeACompleteOneIsDamage) {
  Bytes file = file_with(kThree);
  file[3 * kSlotBytes - 1] = std::byte{0};
  EXPECT_THAT(damage_of(file), HasSubstr("at byte 8192: an incomplete record"));
  EXPECT_EQ(parse(file).records.size(), 1u);
}

TEST(Format, TruncatedFileIsDamaged) {
  const Bytes whole = file_with(kThree);
  for (std::size_t size = 0; size < kThreeBytes + 2 * kSlotBytes;
       size += size % kSlotBytes < 64 || size % kSlotBytes > kSlotBytes - 8 ? 1 : 7) {
    const Contents contents = parse(std::span(whole).first(size));
    ASSERT_TRUE(contents.damage) << size;
    ASSERT_TRUE(starts_as(contents, kThree));
    ASSERT_EQ(contents.records.size(),
              std::min<std::size_t>(3, size < kSlotBytes ? 0 : size / kSlotBytes - 1));
  }
}

TEST(Format, TooLongFileIsDamaged) {
  Bytes file = file_with(kThree);
  file.push_back(std::byte{0});
  EXPECT_THAT(damage_of(file), HasSubstr("131073 bytes, not 131072"));
}

/// Every bit of what is written, and one bit in every few bytes of zeros.
std::vector<std::size_t> bits_worth_flipping(const Bytes& file) {
  constexpr std::size_t kFewBytes = 29;
  std::vector<std::size_t> bits;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const bool written = file[i] != std::byte{0} || (i < kThreeBytes && i % kSlotBytes < 64);
    for (std::size_t bit = 0; written && bit < 8; ++bit) bits.push_back(8 * i + bit);
    if (!written && i % kFewBytes == 0) bits.push_back(8 * i + i % 8);
  }
  return bits;
}

TEST(Format, EveryFlippedBitIsNoticed) {
  Bytes file = file_with(kThree);
  for (const std::size_t bit : bits_worth_flipping(file)) {
    const std::size_t at = bit / 8;
    const std::byte before = file[at];
    file[at] ^= std::byte{1} << (bit % 8);
    const Contents contents = parse(file);
    file[at] = before;
    ASSERT_FALSE(is_good(contents)) << "bit " << bit;
    ASSERT_TRUE(starts_as(contents, kThree));
    // A record that was completely written is never read as a torn one.
    ASSERT_EQ(contents.damage.has_value(), at < kThreeBytes || at >= kThreeBytes + kSlotBytes);
  }
}

TEST(Format, SwappedOrRepeatedRecordsAreDamage) {
  Bytes swapped = file_with({began(), keeper_started(5), keeper_started(6)});
  std::swap_ranges(swapped.begin() + 2 * kSlotBytes, swapped.begin() + 3 * kSlotBytes,
                   swapped.begin() + 3 * kSlotBytes);
  EXPECT_THAT(damage_of(swapped), HasSubstr("at byte 8192: a wrong checksum"));
  Bytes repeated = file_with(kThree);
  std::copy_n(repeated.begin() + 3 * kSlotBytes, kSlotBytes, repeated.begin() + 4 * kSlotBytes);
  EXPECT_THAT(damage_of(repeated), HasSubstr("at byte 16384: a wrong checksum"));
}

TEST(Format, RecordOfAnotherJournalIsDamage) {
  Bytes file = file_with(kThree);
  Record other = began();
  other.mutable_began()->set_command("another");
  const Bytes another = file_with({other, keeper_started(5), committed()});
  std::copy_n(another.begin() + 3 * kSlotBytes, kSlotBytes, file.begin() + 3 * kSlotBytes);
  EXPECT_NE(damage_of(file), "");
}

TEST(Format, BeganComesFirstAndOnce) {
  EXPECT_THAT(damage_of(file_with({})), HasSubstr("no record"));
  EXPECT_THAT(damage_of(file_with({committed()})), HasSubstr("Began must be the first record"));
  EXPECT_THAT(damage_of(file_with({began(), began()})), HasSubstr("at byte 8192: Began must be"));
}

TEST(Format, BeganNeedsAnIdAndARole) {
  Record short_id = began();
  short_id.mutable_began()->set_migration_id("x");
  EXPECT_THAT(damage_of(file_with({short_id})), HasSubstr("a migration id of 1 bytes, not 16"));
  Record no_role = began();
  no_role.mutable_began()->clear_role();
  EXPECT_THAT(damage_of(file_with({no_role})), HasSubstr("no role has the number 0"));
  Record odd_role = began();
  odd_role.mutable_began()->set_role(static_cast<Role>(7));
  EXPECT_THAT(damage_of(file_with({odd_role})), HasSubstr("no role has the number 7"));
}

TEST(Format, OtherVersionsAndOtherFilesAreDistinguished) {
  Bytes file = file_with(kThree);
  file[8] = std::byte{2};
  EXPECT_THAT(damage_of(file), HasSubstr("version 2 of the format; this release reads 1"));
  file[0] = std::byte{'X'};
  EXPECT_THAT(damage_of(file), HasSubstr("the file is not a journal"));
  EXPECT_THAT(damage_of({}), HasSubstr("the file is not a journal"));
}

TEST(Format, EmptyRecordIsNotSealed) {
  EXPECT_EQ(seal(Record(), 0).error().code(), Code::kInvalidArgument);
}

TEST(Format, TooLongRecordIsNotSealed) {
  EXPECT_EQ(seal(aborted(std::string(kSlotBytes, 'x')), 0).error().code(), Code::kInvalidArgument);
}

TEST(Format, NoiseIsNeverReadAsRecords) {
  const Bytes whole = file_with(kThree);
  std::mt19937 random(1);
  for (int run = 0; run < 3'000; ++run) {
    Bytes file = whole;
    file.resize(std::uniform_int_distribution<std::size_t>(0, 2 * kThreeBytes)(random));
    for (unsigned changes = 1 + random() % 8; changes != 0 && !file.empty(); --changes) {
      const auto at = random() % file.size();
      const auto length = std::min<std::size_t>(file.size() - at, 1 + random() % 64);
      std::generate_n(file.begin() + static_cast<std::ptrdiff_t>(at), length,
                      [&] { return static_cast<std::byte>(random()); });
    }
    file.resize(run % 2 == 0 ? kFileBytes : file.size());
    ASSERT_TRUE(starts_as(parse(file), kThree)) << run;
  }
}

TEST(Texts, AreCutBetweenCharacters) {
  Record record = aborted(std::string(9, 'x') + "é and more");
  ASSERT_TRUE(make_fit(record, 10));
  EXPECT_EQ(record.aborted().message(), std::string(9, 'x'));
  record = aborted(std::string(8, 'x') + "é and more");
  ASSERT_TRUE(make_fit(record, 10));
  EXPECT_EQ(record.aborted().message(), std::string(8, 'x') + "é");
}

TEST(Texts, StayUnchangedIfTheyFit) {
  for (const char* text : {"", "0123456789", "é", "日本語", "\xf0\x9f\x90\x8c"}) {
    Record record = aborted(text);
    ASSERT_TRUE(make_fit(record, 10));
    EXPECT_EQ(record.aborted().message(), text);
  }
}

TEST(Texts, BecomeUtf8) {
  for (const auto& [text, fit] :
       std::vector<std::pair<std::string, std::string>>{{"a\xff"
                                                         "b",
                                                         "a?b"},
                                                        {"\xc3", "?"},
                                                        {"\xc0\x80", "??"},
                                                        {"\xed\xa0\x80", "???"},
                                                        {"\xe6\x97", "??"},
                                                        {std::string(12, '\xff'), "??????????"}}) {
    Record record = aborted(text);
    ASSERT_TRUE(make_fit(record, 10));
    EXPECT_EQ(record.aborted().message(), fit);
  }
}

TEST(Texts, AreTheOnlyFieldsThatChange) {
  Record record = began();
  record.mutable_began()->set_migration_id(std::string(16, '\xff'));
  const Record before = record;
  ASSERT_TRUE(make_fit(record, 100));
  EXPECT_EQ(record.SerializeAsString(), before.SerializeAsString());
}

TEST(Texts, TextsOfListsAreCutOneByOne) {
  Record record = began();
  record.mutable_began()->add_members()->set_pid(4712);
  const Record before = record;
  ASSERT_TRUE(make_fit(record, 100));
  EXPECT_EQ(record.SerializeAsString(), before.SerializeAsString());
  for (const char* home : {"/first", "", "/second\xff"})
    record.mutable_detaching()->add_homes(home);
  ASSERT_TRUE(make_fit(record, 6));
  EXPECT_THAT(record.detaching().homes(), testing::ElementsAre("/first", "", "/secon"));
}

/// A file with slots of the format before lists of members: the beginning of each slot. The rest of
/// a slot is zeros and its end.
Bytes old_file(const std::vector<std::string>& slots_in_hex) {
  Bytes file(kFileBytes);
  std::ranges::copy(header().slot, file.begin());
  auto at = file.begin() + kSlotBytes;
  for (const std::string& hex : slots_in_hex) {
    for (std::size_t i = 0; i < hex.size(); i += 2) {
      at[static_cast<std::ptrdiff_t>(i / 2)] =
          static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    at += kSlotBytes;
    at[-1] = std::byte{'\n'};
  }
  return file;
}

TEST(OldJournals, SourceJournalNamesOneMember) {
  const Contents contents = parse(old_file(
      {"52005a00be93490e08808b87dcaa3312510a103031323334353637383961626364656610011a04626f6f7422"
       "0a6e6f6465323a373431312a056e6f6465323206"
       "08e72410af063a10707974686f6e332073657276652e70794205616c69636548e807",
       "5200110053d7727308818b87dcaa331a080a0608f024108407",
       "52001600ac78042708828b87dcaa33220d0a0b2f757365722e736c696365"}));
  ASSERT_TRUE(is_good(contents)) << contents.damage->message();
  ASSERT_EQ(contents.records.size(), 3u);
  const Began& began = contents.records[0].began();
  ASSERT_EQ(began.members_size(), 1);
  EXPECT_EQ(began.members(0).pid(), 4711);
  EXPECT_EQ(began.members(0).start_time(), 815u);
  EXPECT_EQ(began.command(), "python3 serve.py");
  EXPECT_EQ(began.uid(), 1000u);
  EXPECT_EQ(contents.records[1].keeper_started().keeper().pid(), 4720);
  EXPECT_THAT(contents.records[2].detaching().homes(), testing::ElementsAre("/user.slice"));
}

TEST(OldJournals, DestinationJournalNamesOneMember) {
  const Contents contents = parse(old_file(
      {"52005200209fc86d08808b87dcaa3312490a103031323334353637383961626364656610021a04626f6f7422"
       "0a6e6f6465313a373431312a056e6f6465313a10"
       "707974686f6e332073657276652e70794205616c69636548e807",
       "520017004aa8d5c908838b87dcaa33320e0a05088927104d1205088827104c"}));
  ASSERT_TRUE(is_good(contents)) << contents.damage->message();
  ASSERT_EQ(contents.records.size(), 2u);
  EXPECT_EQ(contents.records[0].began().members_size(), 0);
  const Restored& restored = contents.records[1].restored();
  ASSERT_EQ(restored.members_size(), 1);
  EXPECT_EQ(restored.members(0).pid(), 5001);
  EXPECT_EQ(restored.members(0).start_time(), 77u);
  EXPECT_EQ(restored.init().pid(), 5000);
}

}  // namespace
}  // namespace gcr::journal::test
