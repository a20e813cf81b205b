// Checkpoints across real processes: one plays the application, another the agent. For HIP, the
// agent asks the engine's door.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "src/base/units.h"
#include "tests/softgpu/subjects.h"

namespace gcr::softgpu::test {
namespace {

class CheckpointTest : public FaceTest {
 protected:
  std::string app(const std::string& command) { return app_.ask(command); }
  /// A command to the agent, about the application.
  std::string agent(const std::string& command, const std::string& rest = "") {
    return agent_.ask(command + " " + std::to_string(app_.pid()) + " " + rest);
  }
  CUprocessState state() {
    const std::string answer = agent("state");
    EXPECT_EQ(answer.substr(0, 2), "0 ");
    return static_cast<CUprocessState>(std::stoi(answer.substr(2)));
  }
  void checkpoint() {
    ASSERT_EQ(agent("lock"), kOk);
    ASSERT_EQ(agent("checkpoint"), kOk);
  }
  void restore() {
    ASSERT_EQ(agent("restore"), kOk);
    ASSERT_EQ(agent("unlock"), kOk);
  }
  /// The lines that contain a path of the machine's store.
  std::vector<std::string> of_store(std::vector<std::string> lines) const {
    std::erase_if(lines, [&](const std::string& line) {
      return line.find(machine_.store()) == std::string::npos;
    });
    return lines;
  }

  Machine machine_{{{gpu_a(), "64M"}}};
  Subject app_{machine_, GetParam()};
  Subject agent_{machine_, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Faces, CheckpointTest, kBothFaces, name_of_face);

/// The checks of the CUDA functions before they ask the door.
using CudaCheckpointTest = CheckpointTest;
INSTANTIATE_TEST_SUITE_P(Faces, CudaCheckpointTest, testing::Values(Face::kCuda), name_of_face);

TEST_P(CudaCheckpointTest, InjectedErrorLeavesTheProcessUnchanged) {
  const std::string file = machine_.store() + "/refuse";
  std::ofstream(file) << "lock " << CUDA_ERROR_NOT_READY << "\nrestore 2\n";
  EXPECT_EQ(agent("lock"), result(CUDA_ERROR_NOT_READY));
  EXPECT_EQ(state(), CU_PROCESS_STATE_RUNNING);
  std::filesystem::remove(file);
  EXPECT_EQ(agent("lock"), kOk);
}

TEST_P(CheckpointTest, OnlyValidStateChangesAreAccepted) {
  const std::string illegal = result(CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(state(), CU_PROCESS_STATE_RUNNING);
  for (const char* refused : {"checkpoint", "restore", "unlock"}) {
    EXPECT_EQ(agent(refused), illegal) << refused;
  }
  EXPECT_EQ(agent("lock"), kOk);
  EXPECT_EQ(state(), CU_PROCESS_STATE_LOCKED);
  for (const char* refused : {"lock", "restore"}) EXPECT_EQ(agent(refused), illegal) << refused;
  EXPECT_EQ(agent("checkpoint"), kOk);
  EXPECT_EQ(state(), CU_PROCESS_STATE_CHECKPOINTED);
  for (const char* refused : {"lock", "checkpoint", "unlock"}) {
    EXPECT_EQ(agent(refused), illegal) << refused;
  }
  EXPECT_EQ(agent("restore"), kOk);
  EXPECT_EQ(state(), CU_PROCESS_STATE_LOCKED);
  EXPECT_EQ(agent("unlock"), kOk);
  EXPECT_EQ(state(), CU_PROCESS_STATE_RUNNING);
}

TEST_P(CheckpointTest, DeviceFileIsClosedAndReopened) {
  const DeviceNode device;
  Subject app(machine_, GetParam(), {"/usr/bin/env", "SOFTGPU_DEVICE_FILE=" + device.path()});
  const std::string pid = std::to_string(app.pid());
  const auto uses = [&] {
    const auto names_it = [&](const std::string& line) { return line.ends_with(device.path()); };
    const auto mappings = mappings_of(app.pid());
    const auto descriptors = descriptors_of(app.pid());
    return std::pair(std::ranges::count_if(mappings, names_it),
                     std::ranges::count_if(descriptors, names_it));
  };
  EXPECT_EQ(uses(), std::pair(1L, 1L));
  ASSERT_EQ(agent_.ask("lock " + pid), kOk);
  EXPECT_EQ(uses(), std::pair(1L, 1L));
  ASSERT_EQ(agent_.ask("checkpoint " + pid), kOk);
  EXPECT_EQ(uses(), std::pair(0L, 0L));
  ASSERT_EQ(agent_.ask("restore " + pid), kOk);
  EXPECT_EQ(uses(), std::pair(1L, 1L));
  ASSERT_EQ(agent_.ask("unlock " + pid), kOk);
}

TEST_P(CheckpointTest, EveryKindOfMemoryKeepsItsAddress) {
  app("context 0");
  const char* kinds[] = {"alloc 5000000", "alloc 100", "vmm 4194304 0", "pool 65536", "variable"};
  std::vector<std::string> addresses;
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(app(kinds[i]), kOk + " " + std::to_string(i));
    ASSERT_EQ(app("fill " + std::to_string(i) + " " + std::to_string(i + 1)), kOk);
    addresses.push_back(app("address " + std::to_string(i)));
  }
  const std::uint64_t used = machine_.used_bytes(0);
  EXPECT_GT(used, 5000000 + 4194304);
  checkpoint();
  EXPECT_EQ(machine_.used_bytes(0), 0);
  restore();
  EXPECT_EQ(machine_.used_bytes(0), used);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(app("address " + std::to_string(i)), addresses[i]);
    EXPECT_EQ(app("holds " + std::to_string(i) + " " + std::to_string(i + 1)), kOk + " 1");
  }
  EXPECT_EQ(app("free 0"), kOk);
  EXPECT_EQ(app("detach 2"), kOk);
  EXPECT_LT(machine_.used_bytes(0), kMiB);
}

TEST_P(CheckpointTest, CheckpointedProcessHasNoGpuResources) {
  app("context 0");
  app("alloc 4194304");
  app("vmm 4194304 0");
  const auto descriptors = descriptors_of(app_.pid());
  const auto vram_descriptors = of_store(descriptors);
  EXPECT_EQ(of_store(mappings_of(app_.pid())).size(), 2) << "two allocations";
  EXPECT_EQ(vram_descriptors.size(), 2) << "the device and the exportable allocation";
  checkpoint();
  EXPECT_THAT(of_store(mappings_of(app_.pid())), testing::IsEmpty());
  const auto left = descriptors_of(app_.pid());
  EXPECT_THAT(of_store(left), testing::IsEmpty());
  EXPECT_EQ(left.size(), descriptors.size() - vram_descriptors.size());
}

TEST_P(CheckpointTest, RestoreThreadBelongsToTheProcess) {
  const std::string answer = agent("thread");
  ASSERT_EQ(answer.substr(0, 2), "0 ");
  std::ifstream name("/proc/" + std::to_string(app_.pid()) + "/task/" + answer.substr(2) + "/comm");
  std::string text;
  std::getline(name, text);
  EXPECT_EQ(text, "softgpu-restore");
}

TEST_P(CheckpointTest, CallsOfALockedProcessWait) {
  ASSERT_EQ(agent("lock"), kOk);
  app_.send("context 0");
  // The application's main thread is executing the command once it waits on a futex in the driver.
  std::string call;
  while (call != "202") {
    std::ifstream file("/proc/" + std::to_string(app_.pid()) + "/syscall");
    file >> call;
  }
  EXPECT_FALSE(app_.has_output());
  ASSERT_EQ(agent("checkpoint"), kOk);
  ASSERT_EQ(agent("restore"), kOk);
  EXPECT_FALSE(app_.has_output());
  ASSERT_EQ(agent("unlock"), kOk);
  EXPECT_EQ(app_.receive().substr(0, 2), "0 ");
}

TEST_P(CheckpointTest, LockTimesOutWhileWorkRuns) {
  app("context 0");
  ASSERT_EQ(app("block"), kOk);
  EXPECT_EQ(agent("lock", "20"), result(CUDA_ERROR_NOT_READY));
  EXPECT_EQ(state(), CU_PROCESS_STATE_RUNNING);
  EXPECT_EQ(app("alloc 4096"), kOk + " 0");
  ASSERT_EQ(app("release"), kOk);
  EXPECT_EQ(agent("lock"), kOk);
}

TEST_P(CheckpointTest, ManagedMemoryIsRefused) {
  app("context 0");
  app("managed 4096");
  ASSERT_EQ(agent("lock"), kOk);
  EXPECT_EQ(agent("checkpoint"), result(CUDA_ERROR_NOT_SUPPORTED));
  EXPECT_EQ(state(), CU_PROCESS_STATE_LOCKED);
  EXPECT_EQ(agent("unlock"), kOk);
  EXPECT_EQ(app("free 0"), kOk);
  checkpoint();
}

TEST_P(CheckpointTest, RestoreWithoutRoomLeavesItCheckpointed) {
  app("context 0");
  app("alloc 41943040");
  app("fill 0 7");
  checkpoint();
  Subject greedy(machine_, GetParam());
  greedy.ask("context 0");
  ASSERT_EQ(greedy.ask("alloc 41943040"), kOk + " 0");
  EXPECT_EQ(agent("restore"), result(CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_EQ(state(), CU_PROCESS_STATE_CHECKPOINTED);
  EXPECT_EQ(machine_.used_bytes(0), 41943040);
  greedy.ask("free 0");
  restore();
  EXPECT_EQ(app("holds 0 7"), kOk + " 1");
}

TEST_P(CheckpointTest, ProcessWithoutAGpuIsReported) {
  Process other(machine_, {"/bin/cat"});
  EXPECT_EQ(other.ask("started"), "started");
  EXPECT_EQ(agent_.ask("lock " + std::to_string(other.pid()) + " 0"),
            result(CUDA_ERROR_NOT_INITIALIZED));
  const std::string gone = std::to_string(other.pid());
  other.signal(SIGKILL);
  other.wait();
  EXPECT_EQ(agent_.ask("lock " + gone + " 0"), result(CUDA_ERROR_INVALID_VALUE));
}

TEST_P(CheckpointTest, MemoryHeldByAnotherProcessOutlivesTheOwnersCheckpoint) {
  app("context 0");
  agent_.ask("context 0");
  app("vmm 4194304 0");
  app("fill 0 42");
  const std::string file = app("export 0").substr(2);
  ASSERT_EQ(agent_.ask("import 4194304 " + std::to_string(app_.pid()) + " " + file), kOk + " 0");
  EXPECT_EQ(agent_.ask("export 0").substr(0, 2), result(CUDA_ERROR_INVALID_VALUE) + " ");
  ASSERT_EQ(app("detach 0"), kOk);
  checkpoint();
  EXPECT_EQ(machine_.used_bytes(0), 4 * kMiB);
  EXPECT_EQ(agent_.ask("holds 0 42"), kOk + " 1");
  restore();
  ASSERT_EQ(app("attach 0 " + std::to_string(app_.pid()) + " " + file), kOk);
  EXPECT_EQ(app("holds 0 42"), kOk + " 1");
}

TEST_P(CheckpointTest, VramOfAKilledProcessIsFree) {
  app("context 0");
  app("alloc 4194304");
  app("vmm 4194304 0");
  EXPECT_EQ(machine_.used_bytes(0), 8 * kMiB);
  app_.signal(SIGKILL);
  app_.wait();
  // The kernel closes a dead process's files asynchronously.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (machine_.used_bytes(0) != 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(machine_.used_bytes(0), 0);
}

/// Two machines of two GPUs each.
class RemapTest : public FaceTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(app_.ask("context 0").substr(0, 2), "0 ");
    ASSERT_EQ(app_.ask("alloc 4194304"), kOk + " 0");
    ASSERT_EQ(app_.ask("vmm 2097152 1"), kOk + " 1");
    app_.ask("fill 0 3");
    EXPECT_TRUE(app_.ask("context 1").starts_with(kOk));
    EXPECT_EQ(app_.ask("fill 1 4"), kOk);
    EXPECT_TRUE(app_.ask("context 0").starts_with(kOk));
    ASSERT_EQ(there_.ask("lock " + pid_ + " 0"), kOk);
    ASSERT_EQ(there_.ask("checkpoint " + pid_), kOk);
  }
  std::string restore(const std::string& pairs) {
    return there_.ask("restore " + pid_ + " " + pairs);
  }

  const std::string a_ = gpu_a();
  const std::string b_ = gpu_b();
  const std::string c_ = hip() ? "cccccccc00000003" : "cccccccc-0000-4000-8000-000000000003";
  const std::string d_ = hip() ? "dddddddd00000004" : "dddddddd-0000-4000-8000-000000000004";
  Machine source_{{{a_, "32M"}, {b_, "32M"}}};
  Machine destination_{{{c_, "32M"}, {d_, "32M"}}};
  Subject app_{source_, GetParam()};
  Subject there_{destination_, GetParam()};
  std::string pid_ = std::to_string(app_.pid());
};

INSTANTIATE_TEST_SUITE_P(Faces, RemapTest, kBothFaces, name_of_face);

TEST_P(RemapTest, RemapMovesMemoryAndKeepsOrdinals) {
  ASSERT_EQ(restore(a_ + " " + d_ + " " + b_ + " " + c_), kOk);
  ASSERT_EQ(there_.ask("unlock " + pid_), kOk);
  EXPECT_EQ(destination_.used_bytes(1), 4 * kMiB);
  EXPECT_EQ(destination_.used_bytes(0), 2 * kMiB);
  EXPECT_EQ(source_.used_bytes(0) + source_.used_bytes(1), 0);
  EXPECT_EQ(app_.ask("holds 0 3"), kOk + " 1");
  EXPECT_TRUE(app_.ask("context 1").starts_with(kOk));
  EXPECT_EQ(app_.ask("holds 1 4"), kOk + " 1");
  EXPECT_TRUE(app_.ask("context 0").starts_with(kOk));
  EXPECT_EQ(app_.ask("uuid 0"), kOk + " " + d_);
  EXPECT_EQ(app_.ask("alloc 2097152"), kOk + " 2");
  EXPECT_EQ(destination_.used_bytes(1), 6 * kMiB);
}

TEST_P(RemapTest, IncompleteMapLeavesItCheckpointed) {
  const std::string invalid = result(CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(restore(a_ + " " + c_), invalid);
  EXPECT_EQ(restore(a_ + " " + c_ + " " + b_ + " " + c_), invalid);
  EXPECT_EQ(restore(a_ + " " + c_ + " " + b_ + " " + a_), invalid);
  EXPECT_EQ(restore(""), invalid) << "the old GPUs are not on this machine";
  EXPECT_EQ(there_.ask("state " + pid_), kOk + " " + std::to_string(CU_PROCESS_STATE_CHECKPOINTED));
  EXPECT_EQ(restore(a_ + " " + c_ + " " + b_ + " " + d_), kOk);
}

TEST_P(RemapTest, SourceCanRestoreItAgain) {
  Subject here(source_, GetParam());
  ASSERT_EQ(here.ask("restore " + pid_), kOk);
  ASSERT_EQ(here.ask("unlock " + pid_), kOk);
  EXPECT_EQ(app_.ask("holds 0 3"), kOk + " 1");
  EXPECT_EQ(source_.used_bytes(0), 4 * kMiB);
}

}  // namespace
}  // namespace gcr::softgpu::test
