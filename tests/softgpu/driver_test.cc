// Behaviour common to CUDA's driver and HIP's runtime inside one process: valid calls, refused
// calls, and their codes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "src/base/unique_fd.h"
#include "src/base/uuid.h"
#include "tests/softgpu/driver_fixture.h"
#include "tests/softgpu/subjects.h"

namespace gcr::softgpu::test {
namespace {

class DriverTest : public DriverFixture, public testing::WithParamInterface<Face> {
 protected:
  DriverTest() : DriverFixture(GetParam()) {}
};

INSTANTIATE_TEST_SUITE_P(Faces, DriverTest, kBothFaces, name_of_face);

TEST_P(DriverTest, DevicesAreThoseOfTheEnvironment) {
  int count = 0;
  ASSERT_EQ(cu.cuDeviceGetCount(&count), CUDA_SUCCESS);
  ASSERT_EQ(count, 2);
  CUuuid raw{};
  ASSERT_EQ(cu.cuDeviceGetUuid_v2(&raw, 1), CUDA_SUCCESS);
  const std::string expected = cu.hip ? kAmdGpuB : to_bytes(*Uuid::parse(kGpuB));
  EXPECT_EQ(std::string(raw.bytes, sizeof(raw.bytes)), expected);
  std::size_t total = 0;
  ASSERT_EQ(cu.cuDeviceTotalMem_v2(&total, 1), CUDA_SUCCESS);
  EXPECT_EQ(total, 32 * kMiB);
  EXPECT_EQ(cu.cuDeviceTotalMem_v2(&total, 2), CUDA_ERROR_INVALID_DEVICE);
}

TEST_P(DriverTest, FreeMemoryFollowsAllocations) {
  const std::size_t before = free_bytes();
  const CUdeviceptr address = alloc(10 * kMiB);
  EXPECT_EQ(free_bytes(), before - 10 * kMiB);
  CUdeviceptr start = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(cu.cuMemGetAddressRange_v2(&start, &bytes, address + 12345), CUDA_SUCCESS);
  EXPECT_EQ(start, address);
  EXPECT_EQ(bytes, 10 * kMiB);
  EXPECT_EQ(cu.cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cu.cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

TEST_P(DriverTest, AllocationBeyondVramIsRefused) {
  const std::size_t before = free_bytes();
  CUdeviceptr address = 0;
  EXPECT_EQ(cu.cuMemAlloc_v2(&address, 65 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(create(&handle, 66 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(free_bytes(), before);
}

TEST_P(DriverTest, VirtualMemoryRulesAreEnforced) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(create(&handle, kPiece + 4096), CUDA_ERROR_INVALID_VALUE) << "not a whole piece";
  ASSERT_EQ(create(&handle, kPiece), CUDA_SUCCESS);
  const CUdeviceptr address = reserve(2 * kPiece);
  EXPECT_EQ(cu.cuMemMap(address + 2 * kPiece, kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemMap(address, 2 * kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu.cuMemMap(address, kPiece, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemMap(address, kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "taken";
  EXPECT_EQ(cu.cuMemsetD8_v2(address, 1, 16), CUDA_ERROR_INVALID_VALUE) << "no access yet";
  EXPECT_EQ(give_access(address, 2 * kPiece), CUDA_ERROR_INVALID_VALUE) << "not all mapped";
  ASSERT_EQ(give_access(address, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8_v2(address, 1, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressFree(address, 2 * kPiece), CUDA_ERROR_INVALID_VALUE) << "in use";
  EXPECT_EQ(cu.cuMemUnmap(address, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8_v2(address, 1, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressFree(address, 2 * kPiece), CUDA_SUCCESS);
}

TEST_P(DriverTest, ReleasedMemoryLivesUntilItIsUnmapped) {
  const std::size_t before = free_bytes();
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(create(&handle, kPiece), CUDA_SUCCESS);
  const CUdeviceptr address = reserve(kPiece);
  ASSERT_EQ(cu.cuMemMap(address, kPiece, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(give_access(address, kPiece), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before - kPiece);
  EXPECT_EQ(cu.cuMemsetD8_v2(address, 7, kPiece), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemUnmap(address, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cu.cuMemAddressFree(address, kPiece), CUDA_SUCCESS);
}

TEST_P(DriverTest, ImportedHandleCannotBeExported) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemGenericAllocationHandle twin = 0;
  ASSERT_EQ(create(&handle, kPiece), CUDA_SUCCESS);
  int file = -1;
  ASSERT_EQ(
      cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemImportFromShareableHandle(
                &twin, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  ::close(file);
  EXPECT_EQ(
      cu.cuMemExportToShareableHandle(&file, twin, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr address = reserve(2 * kPiece);
  ASSERT_EQ(cu.cuMemMap(address, kPiece, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemMap(address + kPiece, kPiece, 0, twin, 0), CUDA_SUCCESS);
  ASSERT_EQ(give_access(address, 2 * kPiece), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemsetD32_v2(address, 0x01020304, kPiece / 4), CUDA_SUCCESS);
  EXPECT_EQ(word(address + kPiece + 8), 0x0102030401020304U);
  EXPECT_EQ(cu.cuMemUnmap(address, 2 * kPiece), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemRelease(twin), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAddressFree(address, 2 * kPiece), CUDA_SUCCESS);
}

TEST_P(DriverTest, ExportNeedsItsHandleTypeAndImportNeedsVram) {
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(create(&handle, kPiece, CU_MEM_HANDLE_TYPE_NONE), CUDA_SUCCESS);
  int file = -1;
  EXPECT_EQ(
      cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
  UniqueFd other(::memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(other.get(), kPiece), 0);
  EXPECT_EQ(cu.cuMemImportFromShareableHandle(
                &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(other.get())),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_P(DriverTest, SubmissionIsAsynchronousAndOrdered) {
  const CUfunction fill = kernel("gcr_fill");
  const CUdeviceptr address = alloc(4096);
  const CUstream in = stream();
  Blocker blocker;
  blocker.put_on(cu, in);
  EXPECT_EQ(launch(fill, {address, 512, 11}, in), CUDA_SUCCESS);
  EXPECT_EQ(launch(fill, {address, 512, 22}, in), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(in), CUDA_ERROR_NOT_READY);
  blocker.unblock();
  EXPECT_EQ(cu.cuStreamSynchronize(in), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(in), CUDA_SUCCESS);
  EXPECT_EQ(word(address + 8), 22);
}

TEST_P(DriverTest, WaitingKernelBlocksOnlyItsStream) {
  const CUfunction wait = kernel("gcr_wait");
  const CUfunction fill = kernel("gcr_fill");
  const CUdeviceptr flag = alloc(4096);
  ASSERT_EQ(cu.cuMemsetD8_v2(flag, 0, 4096), CUDA_SUCCESS);
  std::vector<CUstream> waiting;  // many more than a driver has threads
  for (int i = 0; i < 32; ++i) {
    waiting.push_back(stream());
    EXPECT_EQ(launch(wait, {flag, 1}, waiting.back()), CUDA_SUCCESS);
    EXPECT_EQ(launch(wait, {flag, 1}, waiting.back()), CUDA_SUCCESS);
  }
  const CUstream other = stream();
  EXPECT_EQ(launch(fill, {flag + 8, 1, 3}, other), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(other), CUDA_SUCCESS);
  for (const CUstream in : waiting) EXPECT_EQ(cu.cuStreamQuery(in), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(launch(fill, {flag, 1, 1}, other), CUDA_SUCCESS);
  for (const CUstream in : waiting) EXPECT_EQ(cu.cuStreamSynchronize(in), CUDA_SUCCESS);
}

TEST_P(DriverTest, GraphRunsAfterAWaitingKernel) {
  const CUfunction wait = kernel("gcr_wait");
  const CUfunction increment = kernel("gcr_counter_increment");
  const CUdeviceptr words = alloc(4096);
  ASSERT_EQ(cu.cuMemsetD8_v2(words, 0, 4096), CUDA_SUCCESS);
  const CUstream in = stream();
  ASSERT_EQ(cu.cuStreamBeginCapture_v2(in, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(launch(increment, {words + 8}, in), CUDA_SUCCESS);
  EXPECT_EQ(launch(wait, {words, 1}, in), CUDA_SUCCESS);
  EXPECT_EQ(launch(increment, {words + 8}, in), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cu.cuStreamEndCapture(in, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphLaunch(exec, in), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphLaunch(exec, in), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(in), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cu.cuMemsetD8_v2(words, 1, 8), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(in), CUDA_SUCCESS);
  EXPECT_EQ(word(words + 8), 4) << "two of each launch, and none twice";
  EXPECT_EQ(cu.cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_P(DriverTest, LegacyStreamWaitsOnlyForBlockingStreams) {
  Blocker blocking_work;
  Blocker other_work;
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  const CUstream other = stream(CU_STREAM_NON_BLOCKING);
  other_work.put_on(cu, other);
  EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_SUCCESS);
  blocking_work.put_on(cu, blocking);
  EXPECT_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  blocking_work.unblock();
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamQuery(other), CUDA_ERROR_NOT_READY);
  other_work.unblock();
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_P(DriverTest, EventsOrderStreamsAndMeasureTime) {
  const CUfunction fill = kernel("gcr_fill");
  const CUdeviceptr address = alloc(4096);
  const CUstream first = stream();
  const CUstream second = stream();
  CUevent start = nullptr;
  CUevent end = nullptr;
  ASSERT_EQ(cu.cuEventCreate(&start, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuEventCreate(&end, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuEventRecord(start, first), CUDA_SUCCESS);
  Blocker blocker;
  blocker.put_on(cu, first);
  EXPECT_EQ(launch(fill, {address, 512, 1}, first), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuEventRecord(end, first), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamWaitEvent(second, end, 0), CUDA_SUCCESS);
  EXPECT_EQ(launch(fill, {address, 512, 2}, second), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventQuery(end), CUDA_ERROR_NOT_READY);
  float milliseconds = -1;
  EXPECT_EQ(cu.cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  blocker.unblock();
  EXPECT_EQ(cu.cuStreamSynchronize(second), CUDA_SUCCESS);
  EXPECT_EQ(word(address), 2);
  EXPECT_EQ(cu.cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
  EXPECT_GT(milliseconds, 0);
  EXPECT_EQ(cu.cuEventDestroy_v2(start), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventDestroy_v2(end), CUDA_SUCCESS);
}

TEST_P(DriverTest, KernelsOfALibraryLaunchInTheCurrentContext) {
  CUlibrary library = nullptr;
  CUkernel fill = nullptr;
  ASSERT_EQ(
      cu.cuLibraryLoadData(&library, apps::kKernelsPtx, nullptr, nullptr, 0, nullptr, nullptr, 0),
      CUDA_SUCCESS);
  ASSERT_EQ(cu.cuLibraryGetKernel(&fill, library, "gcr_fill"), CUDA_SUCCESS);
  const CUdeviceptr address = alloc(4096);
  EXPECT_EQ(launch(reinterpret_cast<CUfunction>(fill), {address, 512, 5}), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(word(address + 4088), 5);
  EXPECT_EQ(cu.cuLibraryUnload(library), CUDA_SUCCESS);
}

TEST_P(DriverTest, CapturedWorkRunsAtTheLaunch) {
  const CUfunction fill = kernel("gcr_fill");
  const CUdeviceptr address = alloc(8192);
  ASSERT_EQ(cu.cuMemsetD8_v2(address, 0, 8192), CUDA_SUCCESS);
  const CUstream in = stream();
  const CUstream side = stream();
  CUevent fork = nullptr;
  ASSERT_EQ(cu.cuEventCreate(&fork, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuStreamBeginCapture_v2(in, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(launch(fill, {address, 512, 8}, in), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventRecord(fork, in), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamWaitEvent(side, fork, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemcpyDtoDAsync_v2(address + 4096, address, 4096, side), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD32Async(address, 9, 2, in), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  EXPECT_EQ(cu.cuStreamEndCapture(side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  ASSERT_EQ(cu.cuStreamEndCapture(in, &graph), CUDA_SUCCESS);
  EXPECT_EQ(word(address + 16), 0) << "nothing ran while it was captured";
  std::size_t nodes = 0;
  EXPECT_EQ(cu.cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
  EXPECT_EQ(nodes, 3);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cu.cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphLaunch(exec, in), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(in), CUDA_SUCCESS);
  EXPECT_EQ(word(address), 0x0000000900000009U);
  EXPECT_EQ(word(address + 16), 8);
  EXPECT_EQ(word(address + 4096), 8);
  EXPECT_EQ(cu.cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventDestroy_v2(fork), CUDA_SUCCESS);
}

TEST_P(DriverTest, AllocationDuringACaptureNeedsRelaxedMode) {
  const CUstream in = stream();
  CUdeviceptr address = 0;
  CUgraph graph = nullptr;
  ASSERT_EQ(cu.cuStreamBeginCapture_v2(in, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAlloc_v2(&address, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAlloc_v2(&address, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cu.cuStreamEndCapture(in, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cu.cuMemAlloc_v2(&address, 4096), CUDA_SUCCESS);
}

TEST_P(DriverTest, RowsAreCopiedBetweenPitches) {
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  ASSERT_EQ(cu.cuMemAllocPitch_v2(&address, &pitch, 5, 3, 4), CUDA_SUCCESS);
  EXPECT_EQ(pitch % 256, 0);
  const char text[] = "abcdefghijklmno";
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = text;
  copy.srcPitch = 5;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = address;
  copy.dstPitch = pitch;
  copy.WidthInBytes = 5;
  copy.Height = 3;
  ASSERT_EQ(cu.cuMemcpy2D_v2(&copy), CUDA_SUCCESS);
  char row[5];
  ASSERT_EQ(cu.cuMemcpyDtoH_v2(row, address + 2 * pitch, 5), CUDA_SUCCESS);
  EXPECT_EQ(std::string(row, 5), "klmno");
  copy.Height = 4096;
  EXPECT_EQ(cu.cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE) << "beyond the allocation";
}

TEST_P(DriverTest, PageableSourceMayChangeAfterSubmission) {
  const CUdeviceptr address = alloc(4096);
  const CUstream in = stream();
  Blocker blocker;
  blocker.put_on(cu, in);
  std::uint64_t value = 1;
  EXPECT_EQ(cu.cuMemcpyHtoDAsync_v2(address, &value, 8, in), CUDA_SUCCESS);
  value = 2;
  blocker.unblock();
  EXPECT_EQ(cu.cuStreamSynchronize(in), CUDA_SUCCESS);
  EXPECT_EQ(word(address), 1);
}

TEST_P(DriverTest, StreamOrderedMemoryIsFreedInOrder) {
  const std::size_t before = free_bytes();
  const CUstream in = stream();
  CUdeviceptr address = 0;
  ASSERT_EQ(cu.cuMemAllocAsync(&address, kPiece, in), CUDA_SUCCESS);
  Blocker blocker;
  blocker.put_on(cu, in);
  EXPECT_EQ(cu.cuMemsetD32Async(address, 1, 512, in), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeAsync(address, in), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before - kPiece);
  blocker.unblock();
  EXPECT_EQ(cu.cuStreamSynchronize(in), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
}

TEST_P(DriverTest, PointersHaveAttributes) {
  const CUdeviceptr address = alloc(4096);
  void* pinned = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  unsigned type = 0;
  EXPECT_EQ(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 100),
            CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     reinterpret_cast<CUdeviceptr>(pinned)),
            CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  CUcontext owner = nullptr;
  EXPECT_EQ(cu.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address), CUDA_SUCCESS);
  EXPECT_EQ(owner, context_);
  EXPECT_EQ(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     reinterpret_cast<CUdeviceptr>(&type)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemFreeHost(pinned), CUDA_SUCCESS);
}

/// Whether this process has a page of memory in its page tables there.
bool has_page_at(const void* address) {
  const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  std::uint64_t entry = 0;
  const auto at = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(address) / 4096 * 8);
  EXPECT_EQ(::pread(pagemap.get(), &entry, sizeof(entry), at), ssize_t{sizeof(entry)});
  return (entry >> 63) != 0;
}

/// As with the real driver (580): a mapping of /dev/zero, to which devices write by DMA.
TEST_P(DriverTest, PinnedMemoryIsWrittenWithoutPageTables) {
  if (GetParam() != Face::kCuda) return;
  const CUdeviceptr from = alloc(4096);
  ASSERT_EQ(cu.cuMemsetD8_v2(from, 7, 4096), CUDA_SUCCESS);
  void* pinned = nullptr;
  ASSERT_EQ(cu.cuMemHostAlloc(&pinned, 3 * 4096, 0), CUDA_SUCCESS);
  auto* const second = static_cast<unsigned char*>(pinned) + 4096;
  ASSERT_EQ(cu.cuMemcpyDtoH_v2(second, from, 4096), CUDA_SUCCESS);
  EXPECT_FALSE(has_page_at(second));
  EXPECT_EQ(second[0], 7);
  EXPECT_EQ(second[4095], 7);
  EXPECT_TRUE(has_page_at(second));
  EXPECT_EQ(cu.cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_P(DriverTest, HostMemoryIsRegisteredOnce) {
  std::vector<char> memory(8192);
  EXPECT_EQ(cu.cuMemHostRegister_v2(memory.data(), memory.size(), 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemHostRegister_v2(memory.data(), memory.size(), 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cu.cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemHostUnregister(memory.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_P(DriverTest, ForkedChildCannotUseTheGpu) {
  const CUdeviceptr address = alloc(4096);
  ASSERT_EQ(cu.cuMemsetD8_v2(address, 1, 8), CUDA_SUCCESS);
  const pid_t child = ::fork();
  if (child == 0) {
    CUcontext current = nullptr;
    const bool refused = cu.cuCtxGetCurrent(&current) == CUDA_ERROR_NOT_INITIALIZED &&
                         cu.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(word(address), 0x0101010101010101U);
}

/// A process that uses both has a door for each.
TEST_P(DriverTest, LockOfOneDriverDoesNotAffectTheOther) {
  const Face face = GetParam();
  const Calls& other = driver(face == Face::kHip ? Face::kCuda : Face::kHip);
  Subject agent(machine(), face);
  const std::string pid = std::to_string(::getpid());
  ASSERT_EQ(agent.ask("lock " + pid + " 0"), kOk);
  ASSERT_EQ(agent.ask("checkpoint " + pid), kOk);
  int device = -1;
  EXPECT_EQ(other.cuDeviceGetCount(&device), CUDA_SUCCESS);
  EXPECT_EQ(Subject(machine(), face == Face::kHip ? Face::kCuda : Face::kHip).ask("state " + pid),
            kOk + " " + std::to_string(CU_PROCESS_STATE_RUNNING));
  ASSERT_EQ(agent.ask("restore " + pid), kOk);
  ASSERT_EQ(agent.ask("unlock " + pid), kOk);
}

}  // namespace
}  // namespace gcr::softgpu::test
