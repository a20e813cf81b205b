// An application sees the same with and without the preload library.
#include <gtest/gtest.h>

#include "preload/cuda/abi/driver_abi.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

/// Two runs of the same program: with the library and without.
class ApplicationTest : public testing::Test {
 protected:
  void SetUp() override {
    for (Subject* subject : {&under_, &plain_}) {
      subject->ask("init");
      context_[subject] = subject->value("primary 0");
    }
  }

  /// The subject's answer about an attribute, with addresses relative to the buffer.
  std::string attribute(Subject& subject, std::uint64_t address, std::uint64_t offset, int which) {
    const std::string answer = subject.answer(command("attribute", address + offset, which));
    if (!answer.starts_with("ok")) return answer;
    const std::uint64_t value = std::stoull(answer.substr(3), nullptr, 16);
    if (which == CU_POINTER_ATTRIBUTE_CONTEXT) {
      return value == context_[&subject] ? "its context" : "another context";
    }
    const bool within = value >= address && value < address + 64 * kMiB;
    return within ? "+" + std::to_string(value - address) : std::to_string(value);
  }

  Subject under_;
  Subject plain_{without_library()};
  std::map<Subject*, std::uint64_t> context_;
};

TEST_F(ApplicationTest, PointerAttributesAreThoseOfTheDriver) {
  const std::uint64_t bytes = 5 * kMiB + 12;
  const std::uint64_t under = under_.value(command("alloc", bytes));
  const std::uint64_t plain = plain_.value(command("alloc", bytes));
  for (const std::uint64_t offset : {std::uint64_t{0}, 3 * kMiB + 1, bytes - 1}) {
    for (unsigned which = CU_POINTER_ATTRIBUTE_CONTEXT;
         which <= CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR; ++which) {
      if (which == CU_POINTER_ATTRIBUTE_BUFFER_ID) continue;  // a number without a meaning
      EXPECT_EQ(attribute(under_, under, offset, which), attribute(plain_, plain, offset, which))
          << "attribute " << which << " at " << offset;
    }
  }
}

TEST_F(ApplicationTest, AttributesReadTogetherEqualSingleReads) {
  const std::uint64_t address = under_.value(command("alloc", 3 * kMiB));
  const auto together = under_.ask(command("attributes", address, 1, 2, 9, 10, 11, 12));
  ASSERT_EQ(together.size(), 6u);
  EXPECT_EQ(together[0], context_[&under_]);
  EXPECT_EQ(together[1], CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(together[2], 0u);
  EXPECT_EQ(together[3], 1u);
  EXPECT_EQ(together[4], address);
  EXPECT_EQ(together[5], 3 * kMiB);
}

TEST_F(ApplicationTest, AddressRangeIsTheRequestedOne) {
  const std::uint64_t bytes = 7 * kMiB + 1;
  const std::uint64_t address = under_.value(command("alloc", bytes));
  const auto range = under_.ask(command("range", address + 4 * kMiB));
  EXPECT_EQ(range, (std::vector<std::uint64_t>{address, bytes}));
}

TEST_F(ApplicationTest, SyncMemopsAttributeIsKept) {
  const std::uint64_t address = under_.value(command("alloc", 4 * kMiB));
  under_.ask(command("sync_memops", address, 1));
  EXPECT_EQ(under_.value(command("attribute", address, 6)), 1u);
  under_.ask(command("sync_memops", address, 0));
  EXPECT_EQ(under_.value(command("attribute", address, 6)), 0u);
}

TEST_F(ApplicationTest, PitchesAreThoseOfTheDriver) {
  for (const std::uint64_t width : {4, 100, 512, 513, 4097, 65537}) {
    for (const std::uint64_t height : {1, 600}) {
      const auto under = under_.ask(command("pitch", width, height, 4));
      const auto plain = plain_.ask(command("pitch", width, height, 4));
      ASSERT_EQ(under.size(), 2u);
      ASSERT_EQ(plain.size(), 2u);
      EXPECT_EQ(under[1], plain[1]) << width << " x " << height;
    }
  }
  EXPECT_EQ(under_.answer("pitch 65536 600 3"), plain_.answer("pitch 65536 600 3"));
}

TEST_F(ApplicationTest, ErrorsOfFreeAreThoseOfTheDriver) {
  EXPECT_EQ(under_.answer("free 0"), plain_.answer("free 0"));
  EXPECT_EQ(under_.answer("free 4096"), plain_.answer("free 4096"));
  for (Subject* subject : {&under_, &plain_}) {
    const std::uint64_t address = subject->value(command("alloc", 4 * kMiB));
    EXPECT_EQ(subject->answer(command("free", address + 4096)), "error 1");
    EXPECT_EQ(subject->answer(command("free", address)), "ok");
    EXPECT_EQ(subject->answer(command("free", address)), "error 1");
  }
}

TEST_F(ApplicationTest, FreeMemoryIsCorrect) {
  const std::uint64_t before = under_.ask("info").at(0);
  const std::uint64_t address = under_.value(command("alloc", 32 * kMiB));
  EXPECT_EQ(under_.ask("info").at(0), before - 32 * kMiB);
  under_.ask(command("free", address));
  EXPECT_EQ(under_.ask("info").at(0), before);
}

TEST_F(ApplicationTest, OutOfMemoryIsTheDriversError) {
  const std::uint64_t total = under_.ask("info").at(1);
  EXPECT_EQ(under_.answer(command("alloc", 2 * total)), plain_.answer(command("alloc", 2 * total)));
  EXPECT_EQ(under_.answer(command("alloc", 0)), plain_.answer(command("alloc", 0)));
}

TEST(FallbackTest, UnsupportedMemoryIsLeftToTheDriver) {
  Subject::Options options;
  options.environment["SOFTGPU_VMM"] = "0";
  Subject subject(options);
  subject.ask("init");
  subject.ask("primary 0");
  const std::uint64_t address = subject.value(command("alloc", 4 * kMiB));
  subject.ask(command("pitch", 4096, 4096, 4));
  subject.ask(command("fill", address, 4 * kMiB, 1));
  gpu::Door door = door_of(subject);
  const door::Summary summary = good(door.hello());
  EXPECT_EQ(summary.fallbacks, 2u);
  EXPECT_EQ(summary.allocations, 0u);
  EXPECT_EQ(summary.untracked_bytes, 20 * kMiB);
  EXPECT_TRUE(good(door.inventory()).empty());
  detach_and_attach(door);  // of nothing
  subject.ask(command("free", address));
  EXPECT_EQ(good(door.hello()).untracked_bytes, 16 * kMiB);
}

TEST_F(ApplicationTest, CaptureSurvivesAllocations) {
  const std::uint64_t before = under_.ask("info").at(0);
  const std::uint64_t stream = under_.value("stream");
  const std::uint64_t older = under_.value(command("alloc", 8 * kMiB));
  under_.ask(command("capture", stream));
  const std::uint64_t newer = under_.value(command("alloc", 4 * kMiB));
  under_.ask(command("free", older));
  under_.ask(command("free", newer));
  EXPECT_NE(under_.value(command("end_capture", stream)), 0u);
  EXPECT_EQ(under_.ask("info").at(0), before);
}

TEST_F(ApplicationTest, DestroyedStreamEndsItsCapture) {
  const std::uint64_t before = under_.ask("info").at(0);
  const std::uint64_t stream = under_.value("stream");
  const std::uint64_t address = under_.value(command("alloc", 8 * kMiB));
  under_.ask(command("capture", stream));
  under_.ask(command("free", address));
  under_.ask(command("destroy_stream", stream));
  EXPECT_EQ(under_.ask("info").at(0), before);
}

TEST_F(ApplicationTest, StreamOrderedFreeWaitsForTheStream) {
  const std::uint64_t before = under_.ask("info").at(0);
  const std::uint64_t stream = under_.value("stream");
  const std::uint64_t address = under_.value(command("alloc", 8 * kMiB));
  under_.ask(command("stall", stream));
  under_.ask(command("free_async", address, stream));
  const std::uint64_t other = under_.value(command("alloc", 4 * kMiB));
  EXPECT_EQ(under_.ask("info").at(0), before - 12 * kMiB);
  under_.ask("go_on");
  under_.ask("sync");
  under_.ask(command("free", other));
  EXPECT_EQ(under_.ask("info").at(0), before);
}

TEST_F(ApplicationTest, ContextFreesItsMemory) {
  const std::uint64_t before = under_.ask("info").at(0);
  const std::uint64_t context = under_.value("context 0");
  const std::uint64_t address = under_.value(command("alloc", 16 * kMiB));
  under_.ask(command("destroy", context));
  under_.ask(command("current", context_[&under_]));
  EXPECT_EQ(under_.answer(command("range", address)).substr(0, 5), "error");
  EXPECT_EQ(under_.ask("info").at(0), before);
}

TEST_F(ApplicationTest, LastReleaseOfAPrimaryContextFreesItsMemory) {
  const std::uint64_t address = under_.value(command("alloc", 16 * kMiB));
  under_.ask("primary 0");
  under_.ask("release_primary 0");
  EXPECT_EQ(under_.value(command("range", address)), address);
  under_.ask("release_primary 0");
  gpu::Door door = door_of(under_);
  EXPECT_TRUE(good(door.inventory()).empty());
}

TEST_F(ApplicationTest, MemoryIsOnTheDeviceOfTheCurrentContext) {
  under_.ask("context 1");
  const std::uint64_t address = under_.value(command("alloc", 4 * kMiB));
  EXPECT_EQ(under_.value(command("attribute", address, 9)), 1u);
  gpu::Door door = door_of(under_);
  const auto entries = good(door.inventory());
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].device_ordinal, 1u);
}

/// As the driver copies, but not memory created by cuMemCreate.
TEST_F(ApplicationTest, ContextCopiesFromAnotherDevice) {
  for (Subject* subject : {&under_, &plain_}) {
    std::uint64_t address[2];
    for (std::uint64_t& one : address) one = subject->value(command("alloc", 4 * kMiB));
    subject->ask(command("fill", address[0], 4 * kMiB, 7));
    const std::uint64_t sum = subject->value(command("sum", address[0], 4 * kMiB));
    subject->value("context 1");
    EXPECT_EQ(subject->answer(command("range", address[0])), "error 500");
    EXPECT_EQ(subject->value(command("sum", address[0], 4 * kMiB)), sum);
    subject->ask(command("current", context_[subject]));
    subject->ask(command("fill", address[1], 4 * kMiB, 7));
    if (subject == &under_) {
      gpu::Door door = door_of(under_);
      detach_and_attach(door);
    }
    const std::uint64_t newer = subject->value(command("alloc", 4 * kMiB));
    subject->ask(command("fill", newer, 4 * kMiB, 7));
    subject->value("context 1");
    for (const std::uint64_t one : {address[0], address[1], newer}) {
      EXPECT_EQ(subject->value(command("sum", one, 4 * kMiB)), sum);
    }
    EXPECT_EQ(subject->answer(command("range", newer)), "error 500");
  }
}

TEST_F(ApplicationTest, PeersReachOldAndNewBuffersAcrossADetach) {
  const std::uint64_t older = under_.value(command("alloc", 4 * kMiB));
  const std::uint64_t peer = under_.value("context 1");
  under_.ask(command("peer_enable", context_[&under_]));
  under_.ask(command("current", context_[&under_]));
  const std::uint64_t newer = under_.value(command("alloc", 4 * kMiB));
  gpu::Door door = door_of(under_);
  detach_and_attach(door);
  under_.ask(command("current", peer));
  for (const std::uint64_t address : {older, newer}) {
    under_.ask(command("fill", address, 4 * kMiB, 7));
    under_.ask(command("sum", address, 4 * kMiB));
  }
  under_.ask(command("peer_disable", context_[&under_]));
}

}  // namespace
}  // namespace gcr::test
