// Mappings whose flags are known from an earlier read.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "migrate-agent/process/pages/mappings.h"

namespace gcr::process::test {
namespace {

constexpr std::uint64_t kMappingBytes = 4096;

/// A mapping of this process that cannot be merged with a neighbour.
class Mapping {
 public:
  Mapping() {
    at_ = static_cast<char*>(
        ::mmap(nullptr, 3 * kMappingBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(::mprotect(page(), kMappingBytes, PROT_READ | PROT_WRITE), 0);
    *page() = 1;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(at_, 3 * kMappingBytes); }

  char* page() const { return at_ + kMappingBytes; }
  AddressRange range() const {
    const auto start = reinterpret_cast<std::uintptr_t>(page());
    return {start, start + kMappingBytes};
  }
  /// Its entry in `mappings`; none if it has none.
  MemoryMapping in(const Result<MemoryMappings>& mappings) const {
    EXPECT_TRUE(mappings);
    const auto found = std::ranges::find(*mappings, range(), &MemoryMapping::range);
    EXPECT_NE(found, mappings->end());
    return found == mappings->end() ? MemoryMapping() : *found;
  }

 private:
  char* at_ = nullptr;
};

class KnownMappings : public testing::Test {
 protected:
  KnownMemory read_known() const { return {read_mappings(::getpid()).value(), {tracked_.range()}}; }
  const Mapping plain_, tracked_;
};

TEST_F(KnownMappings, EqualThoseOfSmaps) {
  const KnownMemory known = read_known();
  const auto again = read_mappings(::getpid(), known);
  EXPECT_TRUE(plain_.in(again).plain);
  EXPECT_FALSE(plain_.in(again).tracked);
  EXPECT_TRUE(tracked_.in(again).tracked);
  std::size_t the_same = 0;  // reading allocates
  for (const MemoryMapping& before : known.mappings) {
    const auto now = std::ranges::find(*again, before.range, &MemoryMapping::range);
    if (now == again->end()) continue;
    ++the_same;
    EXPECT_EQ(now->anonymous, before.anonymous);
    EXPECT_EQ(now->plain, before.plain);
    if (before.anonymous) {
      EXPECT_EQ(now->accounted, before.accounted);
    }
    EXPECT_GE(now->anonymous_bytes, before.anonymous_bytes);
  }
  EXPECT_GT(the_same, known.mappings.size() / 2);
}

TEST_F(KnownMappings, NewMappingsArePlainAndFlaggedOnesAreNot) {
  KnownMemory known = read_known();
  for (MemoryMapping& mapping : known.mappings) {
    if (mapping.range == plain_.range()) mapping.plain = !(mapping.flagged = true);
  }
  const Mapping later;
  const auto again = read_mappings(::getpid(), known);
  EXPECT_FALSE(plain_.in(again).plain);
  EXPECT_TRUE(later.in(again).plain);
}

TEST_F(KnownMappings, NewlyLockedMemoryIsSeen) {
  const KnownMemory known = read_known();
  ASSERT_EQ(::mlock(plain_.page(), kMappingBytes), 0);
  const MemoryMapping locked = plain_.in(read_mappings(::getpid(), known));
  ASSERT_EQ(::munlock(plain_.page(), kMappingBytes), 0);
  EXPECT_FALSE(locked.plain);
  EXPECT_TRUE(locked.flagged);
}

TEST_F(KnownMappings, EndedProcessIsAnError) { EXPECT_FALSE(read_mappings(0, read_known())); }

}  // namespace
}  // namespace gcr::process::test
