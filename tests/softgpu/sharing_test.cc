// Memory that several processes or devices use. All of it holds for a real driver too.
#include <unistd.h>

#include "tests/softgpu/subjects.h"

namespace gcr::softgpu::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Faces, SharingTest, kBothFaces, name_of_face);

/// HIP creates none.
using HostMemoryTest = SharingTest;
INSTANTIATE_TEST_SUITE_P(Faces, HostMemoryTest, testing::Values(Face::kCuda), name_of_face);

const std::string kNone = std::to_string(CU_MEM_ACCESS_FLAGS_PROT_NONE);
const std::string kRead = std::to_string(CU_MEM_ACCESS_FLAGS_PROT_READ);
const std::string kReadWrite = std::to_string(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

TEST_P(SharingTest, ImportedMemoryLivesUntilItsLastUser) {
  one_.ask("context 0");
  other_.ask("context 0");
  ASSERT_EQ(one_.ask("vmm " + kPieceBytes + " 0"), kOk + " 0");
  ASSERT_EQ(one_.ask("fill 0 7"), kOk);
  ASSERT_EQ(other_.ask("import " + kPieceBytes + " " + one_.exported("0")), kOk + " 0");
  EXPECT_EQ(other_.ask("holds 0 7"), kOk + " 1");
  ASSERT_EQ(other_.ask("kernel_fill 0 0"), kOk);
  EXPECT_EQ(one_.ask("holds 0 0"), kOk + " 1");
  ASSERT_EQ(one_.ask("fill 0 9"), kOk);
  ASSERT_EQ(one_.ask("detach 0"), kOk);
  EXPECT_EQ(other_.ask("holds 0 9"), kOk + " 1");
  EXPECT_EQ(other_.value("properties 0"), std::to_string(CU_MEM_LOCATION_TYPE_DEVICE));
  EXPECT_TRUE(other_.ask("export 0").starts_with(result(CUDA_ERROR_INVALID_VALUE)));
  EXPECT_EQ(other_.ask("detach 0"), kOk);
}

TEST_P(SharingTest, DescriptorIsEnoughAcrossNamespaces) {
  Subject inside(
      machine_, GetParam(),
      {"/usr/bin/unshare", "--fork", "--kill-child", "--pid", "--mount", "--net", "--ipc"});
  const std::string path = "/tmp/gcr-sharing-test-" + std::to_string(::getpid());
  for (const std::string& make : makes()) {
    Subject outside(machine_, GetParam());
    outside.ask("context 0");
    inside.ask("context 0");
    ASSERT_EQ(outside.ask(make + " " + kPieceBytes + " 0"), kOk + " 0");
    ASSERT_EQ(outside.ask("fill 0 5"), kOk);
    ASSERT_EQ(inside.ask("listen " + path), kOk);
    inside.send("receive " + kPieceBytes);
    ASSERT_EQ(outside.ask("send 0 " + path), kOk);
    ::unlink(path.c_str());
    const std::string buffer = inside.receive();
    ASSERT_TRUE(buffer.starts_with(kOk + " ")) << buffer;
    EXPECT_EQ(inside.ask("holds " + buffer.substr(2) + " 5"), kOk + " 1");
    ASSERT_EQ(inside.ask("fill " + buffer.substr(2) + " 6"), kOk);
    EXPECT_EQ(outside.ask("holds 0 6"), kOk + " 1");
  }
}

TEST_P(HostMemoryTest, HostMemoryIsSharedAndUsableByTheCpu) {
  one_.ask("context 0");
  other_.ask("context 0");
  ASSERT_EQ(one_.ask("numa " + kPieceBytes + " 0"), kOk + " 0");
  EXPECT_EQ(one_.value("properties 0"), std::to_string(CU_MEM_LOCATION_TYPE_HOST_NUMA));
  ASSERT_EQ(one_.ask("cpu_fill 0 3"), kOk);
  EXPECT_EQ(one_.ask("holds 0 3"), kOk + " 1");
  ASSERT_EQ(other_.ask("import " + kPieceBytes + " " + one_.exported("0")), kOk + " 0");
  EXPECT_EQ(other_.value("properties 0"), std::to_string(CU_MEM_LOCATION_TYPE_HOST_NUMA));
  EXPECT_EQ(other_.value("get_access 0 -1"), kNone);
  EXPECT_EQ(other_.value("get_access 0 0"), kReadWrite);
  ASSERT_EQ(other_.ask("kernel_fill 0 0"), kOk);
  ASSERT_EQ(other_.ask("allow_cpu 0 0"), kOk);
  EXPECT_EQ(other_.ask("cpu_holds 0 0"), kOk + " 1");
  ASSERT_EQ(other_.ask("cpu_fill 0 4"), kOk);
  EXPECT_EQ(one_.ask("cpu_holds 0 4"), kOk + " 1");
}

TEST_P(HostMemoryTest, HostMemoryWithoutANodeCannotBeExported) {
  one_.ask("context 0");
  EXPECT_EQ(one_.ask("host " + kPieceBytes + " 1"), result(CUDA_ERROR_INVALID_VALUE));
  ASSERT_EQ(one_.ask("host " + kPieceBytes + " 0"), kOk + " 0");
  EXPECT_TRUE(one_.ask("export 0").starts_with(result(CUDA_ERROR_INVALID_VALUE)));
  ASSERT_EQ(one_.ask("map 0 0"), kOk);
  ASSERT_EQ(one_.ask("access 0 -1 " + kReadWrite), kOk);
  ASSERT_EQ(one_.ask("cpu_fill 0 1"), kOk);
  EXPECT_EQ(one_.ask("holds 0 1"), kOk + " 1");
}

TEST_P(SharingTest, RetainedHandleKeepsTheMemory) {
  one_.ask("context 0");
  ASSERT_EQ(one_.ask("vmm " + kPieceBytes + " 0"), kOk + " 0");
  ASSERT_EQ(one_.ask("fill 0 2"), kOk);
  ASSERT_EQ(one_.ask("retain 0"), kOk + " 1");
  ASSERT_EQ(one_.ask("detach 0"), kOk);
  ASSERT_EQ(one_.ask("map 1 0"), kOk);
  EXPECT_EQ(one_.ask("holds 1 2"), kOk + " 1");
  ASSERT_EQ(one_.ask("alloc 4096"), kOk + " 2");
  EXPECT_EQ(one_.ask("retain 2"), result(CUDA_ERROR_INVALID_VALUE)) << "not of cuMemMap";
}

TEST_P(SharingTest, AccessIsPerLocation) {
  if (!has_two_gpus()) GTEST_SKIP() << "one GPU";
  one_.ask("context 0");
  one_.ask("context 1");
  ASSERT_EQ(one_.ask("vmm " + kPieceBytes + " 0"), kOk + " 0");
  EXPECT_EQ(one_.value("get_access 0 0"), kReadWrite);
  EXPECT_EQ(one_.value("get_access 0 1"), kNone);
  ASSERT_EQ(one_.ask("access 0 0 " + kRead + " 1 " + kReadWrite), kOk);
  EXPECT_EQ(one_.value("get_access 0 0"), kRead);
  EXPECT_EQ(one_.value("get_access 0 1"), kReadWrite);
  EXPECT_EQ(one_.ask("kernel_fill 0 5"), kOk) << "in the second GPU's context";
  EXPECT_EQ(one_.value("word 0"), "5");
  ASSERT_EQ(one_.ask("current 0"), kOk);
  EXPECT_EQ(one_.ask("kernel_fill 0 6"), result(CUDA_ERROR_ILLEGAL_ADDRESS));
}

TEST_P(SharingTest, MemoryOfAnotherGpuIsMappedForTheOwnGpu) {
  if (!has_two_gpus()) GTEST_SKIP() << "one GPU";
  one_.ask("context 0");
  other_.ask("context 1");
  ASSERT_EQ(one_.ask("vmm " + kPieceBytes + " 0"), kOk + " 0");
  ASSERT_EQ(other_.ask("import " + kPieceBytes + " " + one_.exported("0") + " 1"), kOk + " 0");
  EXPECT_EQ(other_.value("get_access 0 0"), kNone);
  ASSERT_EQ(other_.ask("kernel_fill 0 12"), kOk);
  EXPECT_EQ(one_.value("word 0"), "12");
}

TEST_P(SharingTest, KernelsReachPeerMemoryOnceEnabled) {
  if (!has_two_gpus()) GTEST_SKIP() << "one GPU";
  EXPECT_EQ(one_.value("can_access 0 1"), "1");
  EXPECT_EQ(one_.value("can_access 0 0"), "0");
  EXPECT_EQ(one_.value("p2p_access 1 0"), "1");
  EXPECT_TRUE(one_.ask("p2p_access 1 1").starts_with(result(CUDA_ERROR_INVALID_DEVICE)));
  ASSERT_EQ(one_.ask("context 0"), kOk + " 0");
  ASSERT_EQ(one_.ask("alloc " + kPieceBytes), kOk + " 0");
  ASSERT_EQ(one_.ask("context 1"), kOk + " 1");
  EXPECT_EQ(one_.ask("disable_peer 0"), result(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED));
  EXPECT_EQ(one_.ask("enable_peer 0 1"), result(CUDA_ERROR_INVALID_VALUE)) << "a flag";
  EXPECT_EQ(one_.ask("enable_peer 1 0"),
            result(hip() ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_CONTEXT))
      << "itself";
  ASSERT_EQ(one_.ask("enable_peer 0 0"), kOk);
  EXPECT_EQ(one_.ask("enable_peer 0 0"), result(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED));
  ASSERT_EQ(one_.ask("kernel_fill 0 8"), kOk);
  EXPECT_EQ(one_.value("word 0"), "8");
  ASSERT_EQ(one_.ask("disable_peer 0"), kOk);
  EXPECT_EQ(one_.ask("kernel_fill 0 9"), result(CUDA_ERROR_ILLEGAL_ADDRESS));
}

TEST_P(SharingTest, CopiesBetweenGpusNeedNoPeerAccess) {
  if (!has_two_gpus()) GTEST_SKIP() << "one GPU";
  one_.ask("context 0");
  ASSERT_EQ(one_.ask("alloc " + kPieceBytes), kOk + " 0");
  ASSERT_EQ(one_.ask("fill 0 1"), kOk);
  one_.ask("context 1");
  ASSERT_EQ(one_.ask("alloc " + kPieceBytes), kOk + " 1");
  ASSERT_EQ(one_.ask("copy_peer 1 1 0 0"), kOk);
  EXPECT_EQ(one_.ask("holds 1 1"), kOk + " 1");
}

TEST_P(SharingTest, LegacyHandleIsCountedPerContext) {
  one_.ask("context 0");
  other_.ask("context 0");
  ASSERT_EQ(one_.ask("alloc " + kPieceBytes), kOk + " 0");
  ASSERT_EQ(one_.ask("vmm " + kPieceBytes + " 0"), kOk + " 1");
  EXPECT_TRUE(one_.ask("ipc_get 1").starts_with(result(CUDA_ERROR_INVALID_VALUE) + " "));
  ASSERT_EQ(one_.ask("fill 0 9"), kOk);
  const std::string handle = one_.value("ipc_get 0");
  ASSERT_EQ(other_.ask("ipc_open " + handle), kOk + " 0");
  EXPECT_EQ(other_.ask("holds 0 9"), kOk + " 1");
  ASSERT_EQ(other_.ask("kernel_fill 0 0"), kOk);
  EXPECT_EQ(one_.ask("holds 0 0"), kOk + " 1");
  ASSERT_EQ(other_.ask("ipc_open " + handle), kOk + " 1");
  EXPECT_EQ(other_.value("address 1"), other_.value("address 0"));
  EXPECT_EQ(other_.ask("ipc_close 0"), kOk);
  EXPECT_EQ(other_.ask("holds 0 0"), kOk + " 1") << "opened twice, closed once";
  EXPECT_EQ(other_.ask("ipc_close 0"), kOk);
  EXPECT_EQ(other_.ask("ipc_close 0"), result(CUDA_ERROR_INVALID_VALUE));
  EXPECT_EQ(one_.ask("ipc_open " + handle), result(CUDA_ERROR_INVALID_CONTEXT)) << "its own";
}

TEST_P(SharingTest, EventIsSharedByItsHandle) {
  const std::string flags = std::to_string(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  one_.ask("context 0");
  other_.ask("context 0");
  ASSERT_EQ(one_.ask("alloc " + kPieceBytes), kOk + " 0");
  ASSERT_EQ(one_.ask("fill 0 0"), kOk);
  ASSERT_EQ(other_.ask("ipc_open " + one_.value("ipc_get 0")), kOk + " 0");
  ASSERT_EQ(one_.ask("event " + flags), kOk);
  const std::string handle = one_.value("event_get");
  EXPECT_EQ(one_.ask("event_open " + handle), result(CUDA_ERROR_INVALID_CONTEXT)) << "its own";
  ASSERT_EQ(other_.ask("event_open " + handle), kOk);
  EXPECT_EQ(other_.ask("event_query"), kOk) << "never recorded";
  // In one process: the wait, and the event after it. In the other, a wait for the event.
  ASSERT_EQ(one_.ask("await 0 5"), kOk);
  ASSERT_EQ(one_.ask("event_record"), kOk);
  EXPECT_EQ(other_.ask("event_query"), result(CUDA_ERROR_NOT_READY));
  ASSERT_EQ(other_.ask("event_wait"), kOk);
  EXPECT_EQ(other_.ask("query"), result(CUDA_ERROR_NOT_READY));
  Subject third(machine_, GetParam());
  third.ask("context 0");
  ASSERT_EQ(third.ask("ipc_open " + one_.value("ipc_get 0")), kOk + " 0");
  ASSERT_EQ(third.ask("kernel_fill 0 5"), kOk);
  EXPECT_EQ(other_.ask("synchronize"), kOk);
  EXPECT_EQ(one_.ask("synchronize"), kOk);
  EXPECT_EQ(one_.ask("event_query"), kOk);
  EXPECT_EQ(other_.ask("event_query"), kOk);
  EXPECT_EQ(other_.ask("event_destroy"), kOk);
  EXPECT_EQ(one_.ask("event_destroy"), kOk);
}

TEST_P(SharingTest, OrdinaryEventHasNoHandle) {
  one_.ask("context 0");
  EXPECT_EQ(one_.ask("event " + std::to_string(CU_EVENT_INTERPROCESS)),
            result(CUDA_ERROR_INVALID_VALUE))
      << "it would measure time";
  ASSERT_EQ(one_.ask("event " + std::to_string(CU_EVENT_DISABLE_TIMING)), kOk);
  EXPECT_TRUE(one_.ask("event_get").starts_with(result(CUDA_ERROR_INVALID_HANDLE) + " "));
}

TEST_P(SharingTest, KernelWaitsForWritesOfAnotherProcess) {
  one_.ask("context 0");
  other_.ask("context 0");
  for (const std::string& make : makes()) {
    const std::string buffer = one_.value(make + " " + kPieceBytes + " 0");
    ASSERT_EQ(one_.ask("fill " + buffer + " 0"), kOk);
    ASSERT_EQ(other_.value("import " + kPieceBytes + " " + one_.exported(buffer)), buffer);
    ASSERT_EQ(other_.ask("await " + buffer + " 5"), kOk);
    EXPECT_EQ(other_.ask("query"), result(CUDA_ERROR_NOT_READY));
    ASSERT_EQ(one_.ask("kernel_fill " + buffer + " 4"), kOk);
    EXPECT_EQ(other_.ask("query"), result(CUDA_ERROR_NOT_READY)) << "4 is not 5";
    ASSERT_EQ(one_.ask("kernel_fill " + buffer + " 5"), kOk);
    EXPECT_EQ(other_.ask("synchronize"), kOk);
  }
}

/// As two ranks of a collective do: each waits for the other's kernel to write.
TEST_P(SharingTest, KernelsOfTwoProcessesWaitForEachOther) {
  one_.ask("context 0");
  other_.ask("context 0");
  ASSERT_EQ(one_.ask("vmm " + kPieceBytes + " 0"), kOk + " 0");
  ASSERT_EQ(one_.ask("fill 0 0"), kOk);
  ASSERT_EQ(other_.ask("import " + kPieceBytes + " " + one_.exported("0")), kOk + " 0");
  ASSERT_EQ(one_.ask("await 0 1"), kOk);
  ASSERT_EQ(one_.ask("kernel_fill_later 0 2"), kOk);
  ASSERT_EQ(other_.ask("kernel_fill_later 0 1"), kOk);
  ASSERT_EQ(other_.ask("await 0 2"), kOk);
  EXPECT_EQ(one_.ask("synchronize"), kOk);
  EXPECT_EQ(other_.ask("synchronize"), kOk);
  EXPECT_EQ(other_.value("word 0"), "2");
}

}  // namespace
}  // namespace gcr::softgpu::test
