// Legacy IPC handles of backed memory, between two processes under the library.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "migrate-agent/gpu/allocations/lister.h"
#include "preload/door_protocol.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

class IpcTest : public testing::Test {
 protected:
  void SetUp() override {
    for (Subject* subject : {&giver_, &taker_}) {
      subject->ask("init");
      subject->ask("primary 0");
    }
  }
  /// The 64 bytes in hexadecimal.
  std::string handle_of(std::uint64_t address) {
    const std::string answer = giver_.answer(command("ipc_get", address));
    EXPECT_TRUE(answer.starts_with("ok ")) << answer;
    return answer.substr(3);
  }
  std::uint32_t blockers(const Subject& subject) {
    gpu::Door door = door_of(subject);
    return good(door.hello()).blockers;
  }

  Subject giver_;
  Subject taker_;
};

TEST_F(IpcTest, BothProcessesSeeTheSameMemory) {
  const std::uint64_t bytes = 5 * kMiB;
  const std::uint64_t given = giver_.value(command("alloc", bytes));
  giver_.ask(command("fill", given, bytes, 3));
  const std::uint64_t taken = taker_.value("ipc_open " + handle_of(given));
  EXPECT_EQ(taker_.value(command("sum", taken, bytes)), giver_.value(command("sum", given, bytes)));
  taker_.ask(command("fill", taken, bytes, 4));
  EXPECT_EQ(taker_.value(command("sum", taken, bytes)), giver_.value(command("sum", given, bytes)));
  EXPECT_EQ(taker_.ask(command("range", taken)), (std::vector<std::uint64_t>{taken, bytes}));
  taker_.ask(command("ipc_close", taken));
  EXPECT_NE(taker_.answer(command("range", taken)).substr(0, 2), "ok");
}

TEST_F(IpcTest, OpenedHandleIsReferenceCounted) {
  const std::string handle = handle_of(giver_.value(command("alloc", 2 * kMiB)));
  const std::uint64_t taken = taker_.value("ipc_open " + handle);
  EXPECT_EQ(taker_.value("ipc_open " + handle), taken);
  taker_.ask(command("ipc_close", taken));
  taker_.ask(command("sum", taken, 2 * kMiB));
  taker_.ask(command("ipc_close", taken));
  EXPECT_NE(taker_.answer(command("range", taken)).substr(0, 2), "ok");
}

TEST_F(IpcTest, ExporterCannotOpenItsOwnHandle) {
  const std::string handle = handle_of(giver_.value(command("alloc", 2 * kMiB)));
  EXPECT_EQ(giver_.answer("ipc_open " + handle), "error 201");
}

TEST_F(IpcTest, HandleOfAnEndedProcessIsRefused) {
  std::string handle;
  {
    Subject short_lived;
    short_lived.ask("init");
    short_lived.ask("primary 0");
    const std::uint64_t address = short_lived.value(command("alloc", 2 * kMiB));
    handle = short_lived.answer(command("ipc_get", address)).substr(3);
  }
  EXPECT_EQ(taker_.answer("ipc_open " + handle).substr(0, 5), "error");
}

TEST_F(IpcTest, SharedMemoryIsDetachedAndAttachedAsOne) {
  const std::uint64_t given = giver_.value(command("alloc", 2 * kMiB));
  const std::uint64_t taken = taker_.value("ipc_open " + handle_of(given));
  EXPECT_EQ(blockers(giver_), 0u);
  EXPECT_EQ(blockers(taker_), 0u);
  gpu::Door giver = door_of(giver_);
  gpu::Door taker = door_of(taker_);
  Held theirs = take_over(giver);
  Held ours = take_over(taker);
  ASSERT_EQ(theirs.size(), 1u);
  ASSERT_EQ(ours.size(), 1u);
  gpu::SameMemory same;
  EXPECT_EQ(good(same.number(theirs[0].second.get())), 1u);
  EXPECT_EQ(good(same.number(ours[0].second.get())), 1u);
  for (gpu::Door* door : {&giver, &taker}) {
    good(quiesce(*door, kLong, kNoLease));
    good(door->detach());
  }
  good(giver.attach(std::move(theirs)));
  good(taker.attach(std::move(ours)));
  good(giver.resume());
  good(taker.resume());
  giver_.ask(command("fill", given, 2 * kMiB, 5));
  EXPECT_EQ(taker_.value(command("sum", taken, 2 * kMiB)),
            giver_.value(command("sum", given, 2 * kMiB)));
  taker_.ask(command("ipc_close", taken));
  giver_.ask(command("free", given));
}

TEST_F(IpcTest, FreedMemoryLeavesNoDescriptorBehind) {
  const auto before = giver_.ask("descriptors");
  const std::uint64_t free_before = giver_.ask("info").at(0);
  const std::uint64_t given = giver_.value(command("alloc", 2 * kMiB));
  handle_of(given);
  giver_.ask(command("free", given));
  EXPECT_EQ(giver_.ask("descriptors"), before);
  EXPECT_EQ(giver_.ask("info").at(0), free_before);
}

TEST_F(IpcTest, SmallAllocationOpensAtItsOffset) {
  const std::uint64_t first = giver_.value("alloc 4096");
  const std::uint64_t second = giver_.value("alloc 1000");
  giver_.ask(command("fill", first, 4096, 6));
  giver_.ask(command("fill", second, 1000, 7));
  const std::uint64_t taken_second = taker_.value("ipc_open " + handle_of(second));
  const std::uint64_t taken_first = taker_.value("ipc_open " + handle_of(first));
  EXPECT_EQ(taken_second - taken_first, second - first);
  EXPECT_EQ(taker_.ask(command("range", taken_second + 999)),
            (std::vector<std::uint64_t>{taken_second, 1000}));
  taker_.ask(command("fill", taken_second, 1000, 8));
  EXPECT_EQ(giver_.value(command("sum", second, 1000)),
            taker_.value(command("sum", taken_second, 1000)));
  EXPECT_EQ(blockers(taker_), 0u);
  taker_.ask(command("ipc_close", taken_second));
  EXPECT_NE(taker_.answer(command("range", taken_second)).substr(0, 2), "ok");
  EXPECT_EQ(taker_.value(command("sum", taken_first, 4096)),
            giver_.value(command("sum", first, 4096)));
  const std::uint64_t with_arena = taker_.ask("descriptors").at(0);
  taker_.ask(command("ipc_close", taken_first));
  EXPECT_LT(taker_.ask("descriptors").at(0), with_arena);
}

// Handles in transit: exported before a move and opened after it.

TEST_F(IpcTest, HandleStaysValidAcrossMoves) {
  const std::uint64_t bytes = 3 * kMiB;
  giver_.ask(command("fill", giver_.value(command("alloc", bytes)), bytes, 1));
  const std::uint64_t given = giver_.value(command("alloc", bytes));
  const std::uint64_t small = giver_.value("alloc 5000");
  giver_.ask(command("fill", given, bytes, 2));
  giver_.ask(command("fill", small, 5000, 3));
  const std::string handle = handle_of(given);
  const std::string small_handle = handle_of(small);
  EXPECT_EQ(handle_of(given), handle) << "asked twice";
  gpu::Door giver = door_of(giver_);
  gpu::Door taker = door_of(taker_);
  for (int move = 0; move < 3; ++move) {
    detach_and_attach(giver);
    detach_and_attach(taker);
    EXPECT_EQ(handle_of(given), handle);
    const std::uint64_t taken = taker_.value("ipc_open " + handle);
    const std::uint64_t small_taken = taker_.value("ipc_open " + small_handle);
    EXPECT_EQ(taker_.value(command("sum", taken, bytes)),
              giver_.value(command("sum", given, bytes)));
    EXPECT_EQ(taker_.value(command("sum", small_taken, 5000)),
              giver_.value(command("sum", small, 5000)));
    taker_.ask(command("ipc_close", taken));
    taker_.ask(command("ipc_close", small_taken));
  }
}

TEST_F(IpcTest, OpenMemoryIsNotOpenedAgainAfterAMove) {
  const std::uint64_t bytes = 2 * kMiB;
  const std::uint64_t given = giver_.value(command("alloc", bytes));
  const std::string handle = handle_of(given);
  const std::uint64_t taken = taker_.value("ipc_open " + handle);
  gpu::Door giver = door_of(giver_);
  gpu::Door taker = door_of(taker_);
  detach_and_attach(giver);
  detach_and_attach(taker);
  EXPECT_EQ(taker_.value("ipc_open " + handle), taken);
}

TEST_F(IpcTest, HandleOfFreedMemoryOpensNothing) {
  giver_.value("alloc 4096");  // keeps the arena
  for (const std::uint64_t bytes : {std::uint64_t{4096}, 2 * kMiB}) {
    const std::uint64_t given = giver_.value(command("alloc", bytes));
    const std::string handle = handle_of(given);
    giver_.ask(command("free", given));
    const std::string of_next = handle_of(giver_.value(command("alloc", bytes)));
    EXPECT_NE(of_next, handle);
    EXPECT_EQ(taker_.answer("ipc_open " + handle), "error 400");
    taker_.value("ipc_open " + of_next);
  }
}

TEST_F(IpcTest, NewProcessOpensAnOldHandleAfterAMove) {
  const std::uint64_t given = giver_.value(command("alloc", 2 * kMiB));
  giver_.ask(command("fill", given, 2 * kMiB, 9));
  const std::string handle = handle_of(given);
  gpu::Door giver = door_of(giver_);
  detach_and_attach(giver);
  Subject latecomer;
  latecomer.ask("init");
  latecomer.ask("primary 0");
  EXPECT_EQ(latecomer.value(command("sum", latecomer.value("ipc_open " + handle), 2 * kMiB)),
            giver_.value(command("sum", given, 2 * kMiB)));
}

TEST_F(IpcTest, HandleWithAnotherPidIsRefused) {
  Subject another;
  another.ask("init");
  another.ask("primary 0");
  const std::string handle = handle_of(giver_.value(command("alloc", 2 * kMiB)));
  const auto in_hexadecimal = [](pid_t pid) {
    std::string digits;
    for (int byte = 0; byte < 4; ++byte) digits += fmt::format("{:02x}", pid >> 8 * byte & 0xff);
    return digits;
  };
  const std::size_t at = handle.find(in_hexadecimal(giver_.pid()));
  ASSERT_NE(at, std::string::npos);
  std::string forged = handle;
  forged.replace(at, 8, in_hexadecimal(another.pid()));
  EXPECT_EQ(taker_.answer("ipc_open " + forged), "error 400");
}

TEST_F(IpcTest, DriverMemoryKeepsItsHandles) {
  const std::uint64_t stream = giver_.value("stream");
  giver_.ask(command("capture", stream));
  const std::uint64_t given = giver_.value("alloc 4096");
  giver_.ask(command("end_capture", stream));
  giver_.ask(command("fill", given, 4096, 6));
  const std::uint64_t taken = taker_.value("ipc_open " + handle_of(given));
  EXPECT_EQ(taker_.value(command("sum", taken, 4096)), giver_.value(command("sum", given, 4096)));
  EXPECT_EQ(blockers(taker_), door::kIpcImported);
  taker_.ask(command("ipc_close", taken));
  EXPECT_EQ(blockers(taker_), 0u);
}

}  // namespace
}  // namespace gcr::test
