// The library's traces in the process: none before CUDA, none in children, and no harm when the
// process closes unknown descriptors.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <filesystem>
#include <fstream>

#include "preload/cuda/abi/driver_abi.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

std::size_t threads_named(const Subject& subject, const std::string& name) {
  std::size_t found = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(subject.pid()) + "/task")) {
    std::string comm;
    std::ifstream(task.path() / "comm") >> comm;
    if (comm == name) ++found;
  }
  return found;
}

TEST(ProcessTest, ProcessWithoutCudaIsUnchanged) {
  Subject under;
  Subject plain{without_library()};
  EXPECT_EQ(under.ask("descriptors"), plain.ask("descriptors"));
  EXPECT_EQ(threads_named(under, "gcr-door"), 0u);
}

TEST(ProcessTest, RepeatedInitialisationStartsOneThread) {
  Subject subject;
  for (int i = 0; i < 3; ++i) subject.ask("init");
  EXPECT_EQ(threads_named(subject, "gcr-door"), 1u);
  EXPECT_EQ(subject.ask("descriptors").at(1), 1u);
}

TEST(ProcessTest, UnknownFunctionIsWithheldAndCounted) {
  if (std::getenv("GCR_TEST_REAL_GPU") != nullptr) GTEST_SKIP() << "no such function there";
  Subject plain{without_library()};
  plain.ask("init");
  const auto found = plain.ask("unknown");
  EXPECT_NE(found.at(0), 0u);
  EXPECT_NE(found.at(1), 0u);
  EXPECT_EQ(found.at(2), std::uint64_t{CU_GET_PROC_ADDRESS_SUCCESS});

  Subject under;
  under.ask("init");
  EXPECT_EQ(good(door_of(under).hello()).withheld, 0u);
  const auto nothing = under.ask("unknown");
  EXPECT_EQ(nothing.at(0), 0u);
  EXPECT_EQ(nothing.at(1), 0u);
  EXPECT_EQ(nothing.at(2), std::uint64_t{CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND});
  EXPECT_EQ(good(door_of(under).hello()).withheld, 2u);
}

TEST(ProcessTest, DoorUsesHighDescriptorNumbers) {
  Subject under;
  Subject plain{without_library()};
  const auto low_descriptors = [](Subject& subject) {
    subject.ask("init");
    std::size_t low = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(subject.pid()) + "/fd")) {
      if (std::stoi(entry.path().filename()) < 512) ++low;
    }
    return low;
  };
  EXPECT_EQ(low_descriptors(under), low_descriptors(plain));
}

TEST(ProcessTest, ForkedChildHasNoDoorAndNoMemory) {
  Subject subject;
  subject.ask("init");
  subject.ask("primary 0");
  subject.ask(command("alloc", 4 * kMiB));
  gpu::Door door = door_of(subject);
  detach_and_attach(door);  // from now on the process keeps a descriptor
  const auto parent = subject.ask("descriptors");
  const auto child = subject.ask("fork");
  ASSERT_EQ(child.size(), 2u);
  EXPECT_EQ(child[1], 0u) << "the card is still there";
  EXPECT_LE(child[0] + 4, parent[0]) << "two ends, a card and a buffer are gone";
  good(door.hello());
  detach_and_attach(door);
}

TEST(ProcessTest, OnlyForkWaitsAtAClosedGate) {
  Subject subject;
  subject.ask("init");
  gpu::Door door = door_of(subject);
  good(quiesce(door, kLong, kNoLease));
  EXPECT_EQ(subject.value("exec"), 1u);
  subject.send("fork");
  const std::string path = "/proc/" + std::to_string(subject.pid()) + "/syscall";
  for (std::string call; call != std::to_string(SYS_futex);) std::ifstream(path) >> call;
  good(door.resume());
  EXPECT_TRUE(subject.receive().starts_with("ok"));
  detach_and_attach(door);
}

TEST(ProcessTest, ExecutedProgramInheritsNothing) {
  Subject subject;
  subject.ask("init");
  EXPECT_EQ(subject.value("exec"), 1u);
}

TEST(ProcessTest, ClosingTheDoorsDescriptorsIsHarmless) {
  Subject subject;
  subject.ask("init");
  subject.ask("primary 0");
  const std::uint64_t address = subject.value("alloc 1048576");
  subject.ask("close_from 512");
  subject.ask(command("fill", address, kMiB, 1));
  subject.ask(command("sum", address, kMiB));
  const auto door = gpu::Door::open(subject.pid());
  ASSERT_FALSE(door);
  EXPECT_EQ(door.error().code(), Code::kNotFound);
}

TEST(ProcessTest, LogLinesNeedTheVariable) {
  testing::internal::CaptureStderr();
  {
    Subject quiet;
    quiet.ask("init");
    quiet.ask("unknown");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  {
    Subject talkative({.environment = {{"GCR_PRELOAD_LOG", "1"}}});
    talkative.ask("init");
    talkative.ask("unknown");
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find(" is withheld: "), std::string::npos);
}

}  // namespace
}  // namespace gcr::test
