// Code that needs only a GpuAccess works with each implementation: dropping pages of zeros, and the
// throttle.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "migrate-agent/gpu/access/throttle.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/pages/zero_pages.h"
#include "tests/gpu/access/fake_access.h"
#include "tests/support/ready_child.h"

namespace gcr::test {
namespace {

using gpu::GpuAccess;
using gpu::Throttle;
using testing::ElementsAre;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kBytes = 4 << 20;

/// A process with two mappings of zeros that it has written to, without the preload library.
class DropZeroPages : public testing::Test {
 protected:
  DropZeroPages() {
    pid_ = fork_ready([this] {
      for (const std::uint64_t start : {zeros_, stack_}) {
        auto* bytes = reinterpret_cast<volatile char*>(start);
        for (std::uint64_t at = 0; at < kBytes; at += kPage) bytes[at] = 0;
      }
      return true;
    });
    access_.state.thread = pid_;
    access_.state.stack = stack_ + kBytes / 2;
  }
  ~DropZeroPages() override {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    for (const std::uint64_t start : {zeros_, stack_}) {
      ::munmap(reinterpret_cast<void*>(start - kPage), kBytes + 2 * kPage);
    }
  }

  /// Between two pages that keep the kernel from merging it with its neighbours.
  static std::uint64_t map() {
    void* start =
        ::mmap(nullptr, kBytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* inner = static_cast<char*>(start) + kPage;
    EXPECT_EQ(::mprotect(inner, kBytes, PROT_READ | PROT_WRITE), 0);
    return reinterpret_cast<std::uint64_t>(inner);
  }

  static std::uint64_t bytes_within(const std::vector<GpuAccess::Pages>& all, std::uint64_t start) {
    std::uint64_t bytes = 0;
    for (const auto& pages : all) {
      const std::uint64_t from = std::max(pages.address, start);
      const std::uint64_t to = std::min(pages.address + pages.bytes, start + kBytes);
      if (from < to) bytes += to - from;
    }
    return bytes;
  }

  auto drop() { return process::drop_zero_pages(access_, procfs::Process::open(pid_).value()); }

  const std::uint64_t zeros_ = map();
  const std::uint64_t stack_ = map();
  pid_t pid_ = 0;
  FakeAccess access_;
};

TEST_F(DropZeroPages, AllZeroPagesButTheStackInUseAreDropped) {
  const auto dropped = drop();
  ASSERT_TRUE(dropped) << dropped.error().message();
  EXPECT_GE(dropped->dropped_bytes, kBytes);
  EXPECT_EQ(bytes_within(access_.dropped, zeros_), kBytes);
  EXPECT_EQ(bytes_within(access_.dropped, stack_), 0u);
  EXPECT_EQ(bytes_within(access_.made_huge, zeros_), kBytes);
  EXPECT_THAT(access_.calls.wait_for(), ElementsAre("read_state", "drop_pages", "use_huge_pages"));
}

TEST_F(DropZeroPages, ProcessRunsOnIfZeroPagesCannotBeDropped) {
  access_.answer_to_drop_pages = Error(Code::kUnsupported, "no library");
  const auto dropped = drop();
  ASSERT_FALSE(dropped);
  EXPECT_EQ(dropped.error().code(), Code::kUnsupported);
  while (procfs::state(std::to_string(pid_)) != 'S') ::usleep(1000);
}

TEST(ThrottleOfAnyAccess, EveryCloseIsFollowedByAnOpen) {
  FakeGate gate;
  Throttle throttle(gate);
  throttle.set_share(0.5);
  gate.calls.wait_for(6);
  EXPECT_TRUE(throttle.stop());
  const auto calls = gate.calls.wait_for();
  ASSERT_EQ(calls.size() % 2, 0u);
  for (std::size_t i = 0; i < calls.size(); i += 2) {
    EXPECT_EQ(calls[i], "quiesce");
    EXPECT_EQ(calls[i + 1], "resume");
  }
}

TEST(ThrottleOfAnyAccess, BusyGpuIsNoError) {
  FakeGate gate;
  gate.answer_to_quiesce = Error(Code::kTimeout, "busy");
  Throttle throttle(gate);
  throttle.set_share(0.5);
  gate.calls.wait_for(3);
  EXPECT_TRUE(throttle.stop());
  EXPECT_THAT(gate.calls.wait_for(), testing::Each("quiesce"));
}

TEST(ThrottleOfAnyAccess, FirstErrorEndsTheThrottle) {
  for (const bool closing : {true, false}) {
    FakeGate gate;
    (closing ? gate.answer_to_quiesce : gate.answer_to_resume) =
        Error(Code::kNotFound, "it has ended");
    Throttle throttle(gate);
    throttle.set_share(0.5);
    const std::size_t last = closing ? 1 : 2;
    gate.calls.wait_for(last);
    const Status stopped = throttle.stop();
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.error().code(), Code::kNotFound);
    EXPECT_EQ(gate.calls.wait_for().size(), last);
  }
}

}  // namespace
}  // namespace gcr::test
