// A program that forks after CUDA has started, in the way of its argument, and prints which device
// files of the driver parent and children have, and the driver's answers to them.
#include <dirent.h>
#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "tests/preload/driver_by_name.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
/// HIP replaces CUDA.
const bool uses_hip = std::getenv("SUBJECT_USES_HIP") != nullptr;
const std::string_view kDeviceFiles = uses_hip ? "/dev/kfd" : "/dev/nvidia";

gcr::preload::test::Api cu;

/// Created by the parent before it forked.
struct Made {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr backed = 0;  ///< 4 MiB
  CUdeviceptr small = 0;   ///< 4 KiB
  CUdeviceptr reserved = 0;
  CUmemGenericAllocationHandle memory = 0;
  CUipcMemHandle ticket{};
};
Made made;

void print(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    ::_exit(99);
  }
}

void must(CUresult result, const char* doing) {
  if (result == CUDA_SUCCESS) return;
  print(std::string("failed: ") + doing + " " + std::to_string(result));
  ::_exit(98);
}

/// "mappings <n> descriptors <n>" of device files in this process.
std::string device_files() {
  std::size_t mappings = 0, descriptors = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    mappings += line.find(kDeviceFiles) != line.npos;
  DIR* folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    char path[512] = {};
    if (::readlinkat(::dirfd(folder), entry->d_name, path, sizeof(path) - 1) <= 0) continue;
    descriptors += std::string_view(path).starts_with(kDeviceFiles);
  }
  ::closedir(folder);
  return "mappings " + std::to_string(mappings) + " descriptors " + std::to_string(descriptors);
}

void print_end_of(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child)
    print("no such child");
  else if (WIFEXITED(status))
    print("ended with " + std::to_string(WEXITSTATUS(status)));
  else
    print("ended by signal " + std::to_string(WTERMSIG(status)));
}

CUmemAllocationProp on_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return properties;
}

void start_cuda() {
  must(cu.cuInit(0), "init");
  must(cu.cuDevicePrimaryCtxRetain(&made.context, 0), "retain");
  must(cu.cuCtxSetCurrent(made.context), "set current");
  must(cu.cuStreamCreate(&made.stream, CU_STREAM_NON_BLOCKING), "create a stream");
  must(cu.cuMemAlloc_v2(&made.backed, 4 * kMiB), "allocate");
  must(cu.cuMemAlloc_v2(&made.small, 4096), "allocate little");
  const CUmemAllocationProp properties = on_device();
  must(cu.cuMemCreate(&made.memory, 2 * kMiB, &properties, 0), "create memory");
  must(cu.cuMemAddressReserve(&made.reserved, 2 * kMiB, 0, 0, 0), "reserve addresses");
  must(cu.cuMemMap(made.reserved, 2 * kMiB, 0, made.memory, 0), "map");
}

/// The parent's GPU memory can be written and read.
void print_whether_it_works() {
  unsigned char byte = 0;
  must(cu.cuMemsetD8_v2(made.backed, 0x5a, 4 * kMiB), "fill");
  must(cu.cuCtxSynchronize(), "synchronize");
  must(cu.cuMemcpyDtoH_v2(&byte, made.backed + 4 * kMiB - 1, 1), "read");
  print(byte == 0x5a ? "parent works" : "parent reads something else");
}

/// `body` in a child, which then ends with _exit(0).
void in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  print_end_of(child);
}

void generations() {
  in_child([] {
    print("child " + device_files());
    in_child([] { print("grandchild " + device_files()); });
  });
  print("parent " + device_files());
  print_whether_it_works();
}

/// A second thread forks while others allocate, from the driver and from malloc.
void threads() {
  constexpr int kForks = 30;
  std::atomic<bool> stop{false};
  std::vector<std::thread> allocating;
  for (int i = 0; i < 3; ++i) {
    allocating.emplace_back([&stop] {
      must(cu.cuCtxSetCurrent(made.context), "set current");
      while (!stop.load()) {
        CUdeviceptr address = 0;
        must(cu.cuMemAlloc_v2(&address, 2 * kMiB), "allocate");
        const std::vector<std::string> strings(100, std::string(1000, 'x'));
        must(cu.cuMemFree_v2(address), "free");
      }
    });
  }
  int good = 0;
  std::thread forking([&good] {
    for (int i = 0; i < kForks; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        CUdeviceptr address = 0;
        const bool clean = device_files() == "mappings 0 descriptors 0";
        ::_exit(clean && cu.cuMemAlloc_v2(&address, 2 * kMiB) != CUDA_SUCCESS ? 0 : 1);
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      good += status == 0 ? 1 : 0;
    }
  });
  forking.join();
  stop.store(true);
  for (std::thread& thread : allocating) thread.join();
  print(std::to_string(good) + " of " + std::to_string(kForks) + " children are good");
  print("parent " + device_files());
  print_whether_it_works();
}

#define PRINT_RESULT(call) print(std::string(#call) + ": " + std::to_string(cu.call))

void print_memory_results() {
  CUdeviceptr address = 0;
  std::size_t size = 0, pitch = 0;
  unsigned long long value = 0;
  CUipcMemHandle ticket{};
  PRINT_RESULT(cuMemAlloc_v2(&address, 4096));
  PRINT_RESULT(cuMemAlloc_v2(&address, 4 * kMiB));
  PRINT_RESULT(cuMemAllocPitch_v2(&address, &pitch, 4096, 4096, 4));
  PRINT_RESULT(cuMemAllocManaged(&address, 4 * kMiB, 1));
  PRINT_RESULT(cuMemsetD8_v2(made.backed, 1, 4 * kMiB));
  PRINT_RESULT(cuMemcpyDtoH_v2(&value, made.backed, 8));
  PRINT_RESULT(cuMemGetAddressRange_v2(&address, &size, made.backed));
  PRINT_RESULT(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, made.backed));
  PRINT_RESULT(cuIpcGetMemHandle(&ticket, made.backed));
  PRINT_RESULT(cuIpcOpenMemHandle_v2(&address, made.ticket, 1));
  PRINT_RESULT(cuIpcCloseMemHandle(made.backed));
  PRINT_RESULT(cuMemFreeAsync(made.backed, made.stream));
  PRINT_RESULT(cuMemFree_v2(made.backed));
  PRINT_RESULT(cuMemFree_v2(made.small));
}

void print_vmm_results() {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = on_device();
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  int fd = -1;
  PRINT_RESULT(cuMemCreate(&handle, 2 * kMiB, &properties, 0));
  PRINT_RESULT(cuMemMap(made.reserved, 2 * kMiB, 0, made.memory, 0));
  PRINT_RESULT(cuMemSetAccess(made.reserved, 2 * kMiB, &access, 1));
  PRINT_RESULT(cuMemSetAccess(made.backed, 2 * kMiB, &access, 1));
  PRINT_RESULT(
      cuMemExportToShareableHandle(&fd, made.memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  PRINT_RESULT(cuMemGetAllocationPropertiesFromHandle(&properties, made.memory));
  PRINT_RESULT(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(made.backed)));
  PRINT_RESULT(cuMemUnmap(made.reserved, 2 * kMiB));
  PRINT_RESULT(cuMemUnmap(made.backed, 4 * kMiB));
  PRINT_RESULT(cuMemAddressFree(made.reserved, 2 * kMiB));
  PRINT_RESULT(cuMemAddressFree(made.backed, 4 * kMiB));
  PRINT_RESULT(cuMemRelease(made.memory));
}

void print_context_results() {
  int count = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  PRINT_RESULT(cuInit(0));
  PRINT_RESULT(cuDeviceGetCount(&count));
  PRINT_RESULT(cuCtxSynchronize());
  PRINT_RESULT(cuStreamCreate(&stream, 0));
  PRINT_RESULT(cuStreamBeginCapture_v2(made.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  PRINT_RESULT(cuStreamEndCapture(made.stream, &graph));
  PRINT_RESULT(cuStreamDestroy_v2(made.stream));
  PRINT_RESULT(cuCtxCreate_v2(&context, 0, 0));
  PRINT_RESULT(cuCtxDestroy_v2(made.context));
  PRINT_RESULT(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  PRINT_RESULT(cuDevicePrimaryCtxRetain(&context, 0));
  PRINT_RESULT(cuDevicePrimaryCtxRelease_v2(0));
  PRINT_RESULT(cuDevicePrimaryCtxReset_v2(0));
}
#undef PRINT_RESULT

/// Every call that the library handles itself, in a child, on the parent's objects.
void calls() {
  must(cu.cuIpcGetMemHandle(&made.ticket, made.backed), "make an IPC handle");
  in_child([] {
    print_memory_results();
    print_vmm_results();
    print_context_results();
  });
  print_whether_it_works();
}

/// Like objects with destructors: frees the GPU memory when the process ends.
void clean_up() {
  print("free: " + std::to_string(cu.cuMemFree_v2(made.backed)));
  print("release: " + std::to_string(cu.cuDevicePrimaryCtxRelease_v2(0)));
}

void exits() {
  std::atexit(clean_up);
  const pid_t child = ::fork();
  if (child == 0) std::exit(7);
  print_end_of(child);
  print_whether_it_works();
  std::exit(0);
}

/// A child that executes another program, or shares the parent's memory until it does, changes
/// nothing.
void spawns() {
  char name[] = "/bin/true";
  char* const words[] = {name, nullptr};
  pid_t child = -1;
  if (::posix_spawn(&child, name, nullptr, nullptr, words, nullptr) == 0) print_end_of(child);
  child = ::vfork();  // NOLINT(clang-analyzer-security.insecureAPI.vfork): what is tested
  if (child == 0) {
    ::execv(name, words);
    ::_exit(96);
  }
  print_end_of(child);
  print("system: " + std::to_string(std::system(name)));
  print("parent " + device_files());
  in_child([] { ::execl("/proc/self/exe", "fork_subject", "device_files", nullptr); });
  print("parent " + device_files());
  print_whether_it_works();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)()> ways{{"generations", generations},
                                               {"threads", threads},
                                               {"calls", calls},
                                               {"exits", exits},
                                               {"spawns", spawns}};
  const std::string way = argc == 2 ? argv[1] : "";
  if (way == "device_files") {
    print("program " + device_files());
    return 0;
  }
  if (!ways.contains(way) || !(uses_hip ? cu.load_hip() : cu.load())) return 97;
  start_cuda();
  ways.at(way)();
  return 0;
}
