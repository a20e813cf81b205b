// Memory has run out although arenas of medium allocations have room: a program gets what the
// driver alone would give it, and its other allocations stay unchanged and in place.
#include <gtest/gtest.h>

#include <map>

#include "preload/cuda/abi/driver_abi.h"
#include "preload/door_protocol.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

constexpr std::uint64_t kOthers = 128;
constexpr std::uint64_t kPieceBytes = 4 * kMiB;
constexpr std::uint64_t kPieces = 96;

class RoomTest : public PlainMemoryTest {
 protected:
  /// Enough buffers that medium allocations come from arenas, and a full GPU.
  void SetUp() override {
    PlainMemoryTest::SetUp();
    empty_ = free_bytes();
    for (std::uint64_t i = 0; i < kOthers; ++i) allocate_other(2 * kMiB);
    for (std::uint64_t i = 0; i < kPieces; ++i) {
      const std::uint64_t address = allocate(kPieceBytes - i);
      fill(address, kPieceBytes - i, i + 1);
      pieces_[address] = kPieceBytes - i;
    }
    stream_ = subject_.value("stream");
  }
  /// All but `spare_bytes`.
  void fill_gpu(std::uint64_t spare_bytes = 0) {
    allocate_other((free_bytes() - spare_bytes) / (2 * kMiB) * (2 * kMiB));
  }
  /// Keeps one piece of `every`. Returns the free memory that the driver alone would have now.
  std::uint64_t thin_out(std::uint64_t every) {
    std::uint64_t i = 0;
    for (auto next = pieces_.begin(); next != pieces_.end();) {
      if (i++ % every == 0) {
        sums_[next->first] = ends_of(next->first);
        ++next;
        continue;
      }
      free(next->first);
      next = pieces_.erase(next);
    }
    std::uint64_t room = empty_ - pieces_.size() * kPieceBytes;
    for (const auto& [address, bytes] : others_) room -= bytes;
    EXPECT_LT(free_bytes(), room) << "nothing is left in arenas";
    return room;
  }
  void expect_pieces_unchanged() {
    for (const auto& [address, bytes] : pieces_) {
      EXPECT_EQ(ends_of(address), sums_[address]);
      EXPECT_EQ(subject_.ask(command("range", address + bytes - 1)),
                (std::vector<std::uint64_t>{address, bytes}));
    }
  }
  /// The library keeps nothing that the program frees.
  void expect_all_is_released() {
    for (const auto& [address, bytes] : pieces_) free(address);
    for (const auto& [address, bytes] : others_) free(address);
    EXPECT_EQ(free_bytes(), empty_);
    EXPECT_EQ(summary().allocations, 0u);
  }
  void allocate_other(std::uint64_t bytes) { others_[allocate(bytes)] = bytes; }
  /// The sums of both ends of a piece.
  std::vector<std::uint64_t> ends_of(std::uint64_t address) {
    constexpr std::uint64_t kEnd = 16 * 1024;
    return {sum(address, kEnd), sum(address + pieces_.at(address) - kEnd, kEnd)};
  }

  std::uint64_t stream_ = 0;
  std::uint64_t empty_ = 0;
  std::map<std::uint64_t, std::uint64_t> others_;
  std::map<std::uint64_t, std::uint64_t> pieces_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> sums_;
};

TEST_F(RoomTest, OneAllocationGetsAllFreedMemory) {
  fill_gpu();
  const std::uint64_t room = thin_out(3);
  allocate_other(room);
  EXPECT_EQ(subject_.answer(command("alloc", 2 * kMiB)), "error 2");
  expect_pieces_unchanged();
  {
    gpu::Door door = door_of(subject_);
    detach_and_attach(door);
  }
  expect_pieces_unchanged();
  expect_all_is_released();
}

TEST_F(RoomTest, ArenasAreCompactedOnTheGpuIfThereIsRoom) {
  fill_gpu(64 * kMiB);
  const std::uint64_t room = thin_out(2);
  allocate_other(room);
  expect_pieces_unchanged();
  expect_all_is_released();
}

TEST_F(RoomTest, SmallerAllocationsGetAllFreedMemory) {
  fill_gpu();
  const std::uint64_t room = thin_out(4);
  std::uint64_t allocated = 0;
  for (std::string answer; (answer = subject_.answer(command("alloc", 6 * kMiB))).starts_with("ok");
       allocated += 6 * kMiB) {
    others_[std::stoull(answer.substr(3), nullptr, 0)] = 6 * kMiB;
  }
  EXPECT_GT(allocated + 6 * kMiB, room);
  expect_pieces_unchanged();
  expect_all_is_released();
}

TEST_F(RoomTest, InsufficientRoomChangesNothing) {
  fill_gpu();
  const std::uint64_t room = thin_out(3);
  gpu::Door door = door_of(subject_);
  const std::uint32_t buffers = good(door.hello()).allocations;
  EXPECT_EQ(subject_.answer(command("alloc", room + 2 * kMiB)), "error 2");
  EXPECT_EQ(good(door.hello()).allocations, buffers);
}

TEST_F(RoomTest, PoolsAndMappingsGetFreedMemoryToo) {
  fill_gpu();
  const std::uint64_t room = thin_out(2);
  const std::uint64_t pooled = subject_.value(command("alloc_async", room / 2, stream_));
  const std::uint64_t handle = subject_.value(command("create", room / 2, 0, 0));
  expect_pieces_unchanged();
  subject_.ask(command("release", handle));
  subject_.ask(command("free_async", pooled, stream_));
  subject_.ask("sync");
  expect_all_is_released();
}

TEST_F(RoomTest, MemoryMappedByOthersIsNotMoved) {
  const std::uint64_t shared = pieces_.begin()->first;
  Subject taker;
  taker.ask("init");
  taker.ask("primary 0");
  const std::string handle = subject_.answer(command("ipc_get", shared)).substr(3);
  const std::uint64_t taken = taker.value("ipc_open " + handle);
  fill_gpu();
  const std::uint64_t room = thin_out(3);
  EXPECT_EQ(subject_.answer(command("alloc", room)), "error 2");
  const std::uint64_t half = allocate(room / 2);
  fill(shared, 4096, 77);
  EXPECT_EQ(taker.value(command("sum", taken, 4096)), sum(shared, 4096));
  free(half);
}

TEST_F(RoomTest, CompetingProcessCausesNoLoss) {
  Subject taker;
  taker.ask("init");
  const std::uint64_t context = taker.value("primary 0");
  fill_gpu();
  const std::uint64_t room = thin_out(2);
  taker.ask(command("grab", context, 2 * kMiB));
  for (std::uint64_t bytes = room; bytes > 2 * kMiB; bytes /= 2) {
    const std::string answer = subject_.answer(command("alloc", bytes));
    if (answer.starts_with("ok")) others_[std::stoull(answer.substr(3), nullptr, 0)] = bytes;
  }
  expect_pieces_unchanged();
  {
    gpu::Door door = door_of(subject_);
    detach_and_attach(door);
  }
  expect_pieces_unchanged();
  taker.ask("free_all");
  expect_all_is_released();
}

TEST_F(RoomTest, MemoryHeldByAnAgentIsNotCompacted) {
  fill_gpu();
  const std::uint64_t room = thin_out(2);
  {
    gpu::Door door = door_of(subject_);
    Held held = take_over(door);
    const std::uint32_t buffers = good(door.hello()).allocations;
    EXPECT_EQ(subject_.answer(command("alloc", room)), "error 2");
    EXPECT_EQ(good(door.hello()).allocations, buffers);
    expect_pieces_unchanged();
    good(quiesce(door, kLong, kNoLease));
    good(door.detach());
    good(door.attach(std::move(held)));
    good(door.resume());
  }
  allocate_other(room);
  expect_pieces_unchanged();
  expect_all_is_released();
}

TEST_F(RoomTest, WaitForRunningWorkIsBounded) {
  fill_gpu();
  const std::uint64_t room = thin_out(2);
  subject_.ask(command("stall", stream_));
  EXPECT_EQ(subject_.answer(command("alloc", room)), "error 2");
  subject_.ask("go_on");
  allocate_other(room);
  expect_pieces_unchanged();
  expect_all_is_released();
}

TEST_F(RoomTest, CaptureIsNotDisturbed) {
  fill_gpu();
  const std::uint64_t room = thin_out(2);
  subject_.ask(command("capture", stream_));
  EXPECT_EQ(subject_.answer(command("alloc", room)), "error 2");
  EXPECT_NE(subject_.value(command("end_capture", stream_)), 0u);
  allocate_other(room);
  expect_pieces_unchanged();
}

TEST_F(RoomTest, OtherThreadsKeepRunning) {
  fill_gpu();
  const std::uint64_t room = thin_out(2);
  const std::uint64_t worked = pieces_.begin()->first;
  fill(worked, 2 * kMiB, 0);
  subject_.ask(command("work", context_, worked));
  allocate_other(room);
  const std::uint64_t steps = subject_.ask("worked").at(0);
  while (subject_.ask("worked").at(0) < steps + 3) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::vector<std::uint64_t> end = subject_.ask("rest");
  EXPECT_EQ(end.at(1), 0u) << "failures";
  const std::uint64_t other = others_.begin()->first;
  fill(other, 2 * kMiB, end.at(0) % 256);
  EXPECT_EQ(sum(worked, 2 * kMiB), sum(other, 2 * kMiB));
}

TEST_F(RoomTest, PeersReachMovedMemory) {
  const std::uint64_t peer = subject_.value("context 1");
  subject_.ask(command("peer_enable", context_));
  subject_.ask(command("current", context_));
  fill_gpu();
  const std::uint64_t room = thin_out(2);
  allocate_other(room);
  subject_.ask(command("current", peer));
  for (const auto& [address, bytes] : pieces_) fill(address, bytes, 7);
}

TEST_F(RoomTest, ContextFreesItsMovedMemory) {
  const std::uint64_t before = free_bytes();
  const std::uint64_t inner = subject_.value("context 0");
  std::vector<std::uint64_t> inside;
  for (int i = 0; i < 24; ++i) inside.push_back(allocate(kPieceBytes));
  for (std::size_t i = 0; i < inside.size(); i += 2) free(inside[i]);
  subject_.ask(command("current", context_));
  const std::uint64_t rest = allocate(before - 12 * kPieceBytes);
  subject_.ask(command("destroy", inner));
  subject_.ask(command("current", context_));
  free(rest);
  EXPECT_EQ(free_bytes(), before);
}

}  // namespace
}  // namespace gcr::test
