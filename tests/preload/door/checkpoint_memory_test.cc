// The driver's checkpoint between a detach and its attach: the library allocates its host memory,
// and its content is restored.
#include <gtest/gtest.h>
#include <stdio.h>

#include <array>
#include <cstddef>
#include <fstream>
#include <memory>
#include <string>

#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

constexpr std::uint64_t kPlainBytes = 21 * kMiB;

/// Makes the driver's calls by hand; "step ok …" for each.
void expect_steps(const Subject& subject, const std::string& steps) {
  std::string lines;
  for (const char step : steps) {
    const char* const name = step == 'l'   ? "lock "
                             : step == 'c' ? "checkpoint "
                             : step == 'r' ? "restore "
                                           : "unlock ";
    lines += name + std::to_string(subject.pid()) + "\\n";
  }
  const std::string command = "printf '" + lines +
                              "' | LD_LIBRARY_PATH=" GCR_SOFTGPU_DIRECTORY
                              " SOFTGPU_VMM=0 " GCR_CHECKPOINT_TOOL " 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string output;
  std::array<char, 4096> block;
  while (::fgets(block.data(), block.size(), pipe.get()) != nullptr) output += block.data();
  std::size_t good = 0;
  for (std::size_t at = 0; (at = output.find(" ok ", at)) != std::string::npos; ++at) ++good;
  EXPECT_EQ(good, steps.size()) << output;
}

/// Mappings that are marked for huge pages, and how much of them is present, in KiB.
struct Marked {
  int count = 0;
  std::size_t resident_kib = 0;
};

Marked marked_in(const Subject& subject) {
  std::ifstream smaps("/proc/" + std::to_string(subject.pid()) + "/smaps");
  Marked marked;
  std::size_t resident_kib = 0;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with("Rss:")) resident_kib = std::stoul(line.substr(4));
    if (!line.starts_with("VmFlags:") || line.find(" hg") == std::string::npos) continue;
    ++marked.count;
    marked.resident_kib += resident_kib;
  }
  return marked;
}

class CheckpointedMemoryTest : public testing::Test {
 protected:
  static Subject::Options untracked() {
    Subject::Options options;
    options.environment["SOFTGPU_VMM"] = "0";
    return options;
  }
  void SetUp() override {
    subject_.ask("init");
    subject_.ask("primary 0");
    address_ = subject_.value(command("alloc", kPlainBytes));
    subject_.ask(command("fill", address_, kPlainBytes, 0));
    subject_.ask(command("fill", address_ + 3 * kMiB + 4097, 2 * kMiB, 7));
    sum_ = sum();
  }
  std::uint64_t sum() { return subject_.value(command("sum", address_, kPlainBytes)); }

  Subject subject_{untracked()};
  std::uint64_t address_ = 0;
  std::uint64_t sum_ = 0;
};

TEST_F(CheckpointedMemoryTest, UsesHugePagesAndDropsZeros) {
  gpu::Door door = door_of(subject_);
  for (int cycle = 0; cycle < 3; ++cycle) {
    good(quiesce(door, kLong, kNoLease));
    good(door.detach());
    expect_steps(subject_, "lc");
    const Marked marked = marked_in(subject_);
    EXPECT_EQ(marked.count, 1);
    EXPECT_GE(marked.resident_kib, 2048u);
    EXPECT_LE(marked.resident_kib, 3u * 2048);
    expect_steps(subject_, "ru");
    good(door.attach({}));
    good(door.resume());
    EXPECT_EQ(sum(), sum_);
  }
}

TEST_F(CheckpointedMemoryTest, IsLeftToTheDriverExceptWhileDetached) {
  for (int cycle = 0; cycle < 2; ++cycle) {
    expect_steps(subject_, "lc");
    EXPECT_EQ(marked_in(subject_).count, 0);
    expect_steps(subject_, "ru");
    EXPECT_EQ(sum(), sum_);
    gpu::Door door = door_of(subject_);
    good(quiesce(door, kLong, kNoLease));
    good(door.detach());
    good(door.attach({}));
    good(door.resume());
  }
}

}  // namespace
}  // namespace gcr::test
