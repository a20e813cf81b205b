// Children of a process that uses CUDA under the library: they hold no device files of the driver,
// get the driver's own errors, and leave the parent alone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "src/base/unique_fd.h"
#include "tests/softgpu/machines.h"

namespace gcr::preload {
namespace {

using softgpu::test::DeviceNode;
using softgpu::test::Machine;
using softgpu::test::Process;
using Lines = std::vector<std::string>;

const Lines kCSubject{GCR_FORK_SUBJECT};
const Lines kPythonSubject{"python3", GCR_FORK_SUBJECT_PYTHON};

class ForkTest : public testing::Test {
 protected:
  /// The output of a subject that forks in some way, and its exit status.
  Lines run(const Lines& subject, const std::string& way, const std::string& preload) {
    Lines command{"/usr/bin/env", "SOFTGPU_DEVICE_FILE=" + device_.path(), "LD_PRELOAD=" + preload};
    command.insert(command.end(), subject.begin(), subject.end());
    command.push_back(way);
    Process process(machine_, command);
    Lines lines;
    for (std::string line; !(line = process.receive()).empty();) lines.push_back(line);
    lines.push_back("status " + std::to_string(process.wait()));
    return lines;
  }
  Lines under(const std::string& way) { return run(kCSubject, way, GCR_PRELOAD_LIBRARY); }
  Lines plain(const std::string& way) { return run(kCSubject, way, ""); }
  Lines python(const std::string& way) { return run(kPythonSubject, way, GCR_PRELOAD_LIBRARY); }

  Machine machine_{{{"aaaaaaaa-0000-4000-8000-0000000000f0", "128M"}}};
  DeviceNode device_;
};

TEST_F(ForkTest, WithoutTheLibraryAChildKeepsTheDriversFiles) {
  EXPECT_EQ(plain("generations"),
            (Lines{"child mappings 1 descriptors 1", "grandchild mappings 1 descriptors 1",
                   "ended with 0", "ended with 0", "parent mappings 1 descriptors 1",
                   "parent works", "status 0"}));
}

TEST_F(ForkTest, ChildrenHoldNothingAndTheParentKeepsAll) {
  EXPECT_EQ(under("generations"),
            (Lines{"child mappings 0 descriptors 0", "grandchild mappings 0 descriptors 0",
                   "ended with 0", "ended with 0", "parent mappings 1 descriptors 1",
                   "parent works", "status 0"}));
}

TEST(ForkHipTest, ChildrenHoldNothing) {
  Machine machine{{{"aaaaaaaa000000f0", "128M"}}};
  const std::string path = "/dev/kfd-soft-" + std::to_string(::getpid());
  {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    ASSERT_TRUE(file && ::ftruncate(file.get(), 4096) == 0);
  }
  for (const std::string way : {"generations", "threads"}) {
    Process process(machine, {"/usr/bin/env", "SUBJECT_USES_HIP=1", "SOFTGPU_DEVICE_FILE=" + path,
                              ("LD_PRELOAD=" GCR_PRELOAD_LIBRARY), GCR_FORK_SUBJECT, way});
    Lines lines;
    for (std::string line; !(line = process.receive()).empty();) lines.push_back(line);
    lines.push_back("status " + std::to_string(process.wait()));
    EXPECT_EQ(lines,
              way == "threads"
                  ? (Lines{"30 of 30 children are good", "parent mappings 1 descriptors 1",
                           "parent works", "status 0"})
                  : (Lines{"child mappings 0 descriptors 0", "grandchild mappings 0 descriptors 0",
                           "ended with 0", "ended with 0", "parent mappings 1 descriptors 1",
                           "parent works", "status 0"}));
  }
  ::unlink(path.c_str());
}

TEST_F(ForkTest, ForkWorksWhileOtherThreadsAllocate) {
  EXPECT_EQ(under("threads"),
            (Lines{"30 of 30 children are good", "parent mappings 1 descriptors 1", "parent works",
                   "status 0"}));
}

TEST_F(ForkTest, CallsOfAChildGetTheDriversErrors) {
  const Lines lines = under("calls");
  EXPECT_EQ(lines, plain("calls"));
  ASSERT_GT(lines.size(), 30u);
  for (std::size_t i = 0; i + 3 < lines.size(); ++i) {
    EXPECT_TRUE(lines[i].ends_with(": 3")) << lines[i];  // CUDA_ERROR_NOT_INITIALIZED
  }
  EXPECT_EQ(lines[lines.size() - 2], "parent works");
}

TEST_F(ForkTest, ExitOfAChildRunsTheParentsHandlers) {
  EXPECT_EQ(under("exits"), (Lines{"free: 3", "release: 3", "ended with 7", "parent works",
                                   "free: 0", "release: 0", "status 0"}));
}

TEST_F(ForkTest, StartingProgramsLeavesTheParentUnchanged) {
  EXPECT_EQ(under("spawns"),
            (Lines{"ended with 0", "ended with 0", "system: 0", "parent mappings 1 descriptors 1",
                   "program mappings 0 descriptors 0", "ended with 0",
                   "parent mappings 1 descriptors 1", "parent works", "status 0"}));
}

/// As with the real driver: a process that used only NVML has used no GPU.
TEST_F(ForkTest, ChildOfAnNvmlOnlyProcessStartsAfresh) {
  Process process(machine_, {"/usr/bin/env", "SOFTGPU_DEVICE_FILE=" + device_.path(),
                             ("LD_PRELOAD=" GCR_PRELOAD_LIBRARY), "python3", GCR_NVML_FORK_SUBJECT,
                             GCR_SOFTNVML});
  Lines lines;
  for (std::string line; !(line = process.receive()).empty();) lines.push_back(line);
  EXPECT_EQ(lines,
            (Lines{"nvml 1 doors 0", "again 0 0 1", "cuda 0 0 0", "doors 1", "parent doors 1"}));
  EXPECT_EQ(process.wait(), 0);
}

TEST_F(ForkTest, ForkedPythonWorkersHoldNothing) {
  EXPECT_EQ(python("fork"),
            (Lines{"sum 332833500", "workers (0, 0)", "init 3", "parent (1, 1) 0", "status 0"}));
}

TEST_F(ForkTest, SpawnedPythonWorkersCanUseCuda) {
  for (const char* way : {"forkserver", "spawn"}) {
    EXPECT_EQ(python(way),
              (Lines{"sum 332833500", "workers (0, 0)", "init 0", "parent (1, 1) 0", "status 0"}))
        << way;
  }
}

}  // namespace
}  // namespace gcr::preload
