// The driver checkpoints a process whose memory is shared: the checkpoint succeeds, the restore
// does not, and the process is lost. Measured with driver 580.159 for processes that both export
// and import; a process that does either is treated the same.
#include "tests/softgpu/subjects.h"

namespace gcr::softgpu::test {
namespace {

class SharedCheckpointTest : public SharingTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(one_.ask("context 0"), kOk + " 0");
    ASSERT_EQ(other_.ask("context 0"), kOk + " 0");
  }
  std::string agent(const std::string& command, const Process& process) {
    return agent_.ask(command + " " + std::to_string(process.pid()));
  }
  void checkpoint(const Process& process) {
    ASSERT_EQ(agent("lock", process), kOk);
    ASSERT_EQ(agent("checkpoint", process), kOk);
  }
  void restore(const Process& process) {
    ASSERT_EQ(agent("restore", process), kOk);
    ASSERT_EQ(agent("unlock", process), kOk);
  }
  /// Each attempt to restore fails.
  void expect_lost(const Process& process, CUresult why) {
    checkpoint(process);
    EXPECT_EQ(agent("restore", process), result(why));
    EXPECT_EQ(agent("restore", process), result(why));
    EXPECT_EQ(agent("state", process), kOk + " " + std::to_string(CU_PROCESS_STATE_CHECKPOINTED));
  }
  void share(const std::string& make) {
    ASSERT_EQ(one_.ask(make + " " + kPieceBytes + " 0"), kOk + " 0");
    ASSERT_EQ(other_.ask("import " + kPieceBytes + " " + one_.exported("0")), kOk + " 0");
  }
  void share_by_legacy_ipc() {
    ASSERT_EQ(one_.ask("alloc " + kPieceBytes), kOk + " 0");
    ASSERT_EQ(other_.ask("ipc_open " + one_.value("ipc_get 0")), kOk + " 0");
  }

  Subject agent_{machine_, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Faces, SharedCheckpointTest, kBothFaces, name_of_face);

using HostMemoryCheckpointTest = SharedCheckpointTest;
INSTANTIATE_TEST_SUITE_P(Faces, HostMemoryCheckpointTest, testing::Values(Face::kCuda),
                         name_of_face);

TEST_P(SharedCheckpointTest, ExporterOfMappedMemoryIsLost) {
  share("vmm");
  expect_lost(one_, CUDA_ERROR_NOT_SUPPORTED);
}

TEST_P(SharedCheckpointTest, ImporterOfMappedMemoryIsLost) {
  share("vmm");
  expect_lost(other_, CUDA_ERROR_NOT_SUPPORTED);
}

TEST_P(HostMemoryCheckpointTest, ImporterOfHostMemoryIsLost) {
  share("numa");
  expect_lost(other_, CUDA_ERROR_NOT_SUPPORTED);
}

TEST_P(SharedCheckpointTest, ExporterOfALegacyHandleIsLost) {
  share_by_legacy_ipc();
  expect_lost(one_, CUDA_ERROR_INVALID_VALUE);
}

TEST_P(SharedCheckpointTest, ImporterOfALegacyHandleIsLost) {
  share_by_legacy_ipc();
  expect_lost(other_, CUDA_ERROR_INVALID_VALUE);
}

TEST_P(SharedCheckpointTest, ClosedLegacyHandleIsNoObstacle) {
  share_by_legacy_ipc();
  ASSERT_EQ(other_.ask("ipc_close 0"), kOk);
  checkpoint(other_);
  restore(other_);
}

TEST_P(HostMemoryCheckpointTest, HostMemoryIsLost) {
  ASSERT_EQ(one_.ask("numa " + kPieceBytes + " 0"), kOk + " 0");
  expect_lost(one_, CUDA_ERROR_UNKNOWN);
}

/// The lock waits for the GPU, and the kernel for the other process.
TEST_P(SharedCheckpointTest, KernelWaitingForAPeerBlocksTheLock) {
  share("vmm");
  ASSERT_EQ(one_.ask("fill 0 0"), kOk);
  ASSERT_EQ(other_.ask("await 0 1"), kOk);
  EXPECT_EQ(agent_.ask("lock " + std::to_string(other_.pid()) + " 100"),
            result(CUDA_ERROR_NOT_READY));
  EXPECT_EQ(agent("state", other_), kOk + " " + std::to_string(CU_PROCESS_STATE_RUNNING));
  ASSERT_EQ(one_.ask("kernel_fill 0 1"), kOk);
  EXPECT_EQ(agent("lock", other_), kOk);
  EXPECT_EQ(agent("unlock", other_), kOk);
}

/// As agents do: a third process keeps the descriptors, both unmap the memory, and map it again.
TEST_P(SharedCheckpointTest, ProcessThatUnmapsFirstCanMapItAgain) {
  for (const std::string& make : makes()) {
    SCOPED_TRACE(make);
    Subject one(machine_, GetParam());
    Subject other(machine_, GetParam());
    one.ask("context 0");
    other.ask("context 0");
    ASSERT_EQ(one.ask(make + " " + kPieceBytes + " 0"), kOk + " 0");
    ASSERT_EQ(one.ask("fill 0 31"), kOk);
    const std::string file = one.value("export 0");
    const std::string offered = std::to_string(one.pid()) + " " + file;
    ASSERT_EQ(other.ask("import " + kPieceBytes + " " + offered), kOk + " 0");
    const std::string kept = std::to_string(agent_.pid()) + " " + agent_.value("take " + offered);
    ASSERT_EQ(one.ask("close " + file), kOk);
    const std::string address = one.value("address 0");
    for (Subject* process : {&one, &other}) {
      ASSERT_EQ(process->ask("detach 0"), kOk);
      ASSERT_NO_FATAL_FAILURE(checkpoint(*process));
    }
    for (Subject* process : {&one, &other}) {
      ASSERT_NO_FATAL_FAILURE(restore(*process));
      ASSERT_EQ(process->ask("attach 0 " + kept), kOk);
    }
    EXPECT_EQ(one.value("address 0"), address);
    EXPECT_EQ(one.ask("holds 0 31"), kOk + " 1");
    ASSERT_EQ(one.ask("kernel_fill 0 0"), kOk);
    EXPECT_EQ(other.ask("holds 0 0"), kOk + " 1");
  }
}

}  // namespace
}  // namespace gcr::softgpu::test
