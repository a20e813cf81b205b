// A program that executes commands of its standard input with CUDA, or with HIP, one per line, and
// answers each with one line: "ok" and values in hexadecimal, or "error" and the driver's code.
// Tests run it with and without the preload library, on the software GPU or a real one.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "tests/apps/storm.h"
#include "tests/preload/driver_by_name.h"

namespace {

/// The functions behind the commands: CUDA, or HIP in its place.
gcr::preload::test::Api cu;

using Numbers = std::vector<unsigned long long>;

/// The outcome of a command.
struct Answer {
  CUresult result = CUDA_SUCCESS;
  Numbers values;
  std::string text;
};

CUstream stream_of(unsigned long long value) { return reinterpret_cast<CUstream>(value); }
CUcontext context_of(unsigned long long value) { return reinterpret_cast<CUcontext>(value); }
template <class T>
unsigned long long number(T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// Work concurrent with the commands: adds one to every byte of a buffer's first 2 MiB, repeatedly,
/// and counts.
class Worker {
 public:
  void start(CUcontext context, CUdeviceptr address) {
    thread_ = std::thread([this, context, address] {
      cu.cuCtxSetCurrent(context);
      std::vector<unsigned char> bytes(std::size_t{2} << 20);
      while (!stop_.load()) {
        if (cu.cuMemcpyDtoH_v2(bytes.data(), address, bytes.size()) != CUDA_SUCCESS) failures_++;
        for (unsigned char& byte : bytes) ++byte;
        if (cu.cuMemcpyHtoD_v2(address, bytes.data(), bytes.size()) != CUDA_SUCCESS) failures_++;
        steps_++;
      }
    });
  }
  Numbers stop() {
    stop_.store(true);
    thread_.join();
    return progress();
  }
  Numbers progress() const { return {steps_.load(), failures_.load()}; }

 private:
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<unsigned long long> steps_{0};
  std::atomic<unsigned long long> failures_{0};
};

/// Allocates memory in pieces of `bytes` as soon as some is free, and holds it until told to free
/// it.
class Grabber {
 public:
  void start(CUcontext context, std::size_t bytes) {
    stop_.store(false);
    thread_ = std::thread([this, context, bytes] {
      cu.cuCtxSetCurrent(context);
      while (!stop_.load()) {
        CUdeviceptr address = 0;
        if (cu.cuMemAlloc_v2(&address, bytes) == CUDA_SUCCESS) grabbed_.push_back(address);
      }
      for (const CUdeviceptr address : grabbed_) cu.cuMemFree_v2(address);
    });
  }
  Numbers free_all() {
    stop_.store(true);
    thread_.join();
    return {grabbed_.size()};
  }

 private:
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::vector<CUdeviceptr> grabbed_;
};

/// A storm of so many threads and rounds, concurrent with the commands. Its values: completed
/// rounds, and whether an error occurred.
class ConcurrentStorm {
 public:
  void start(CUcontext context, std::size_t threads, std::uint64_t steps, std::uint64_t rounds,
             gcr::apps::StormMemory memory) {
    thread_ = std::thread([=, this] {
      gcr::apps::Storm storm(
          {cu.cuCtxSetCurrent, cu.cuMemAlloc_v2, cu.cuMemFree_v2, cu.cuMemsetD8_v2,
           cu.cuMemcpyDtoH_v2, cu.cuStreamCreate, cu.cuStreamSynchronize, cu.cuMemAllocAsync,
           cu.cuMemFreeAsync, cu.cuMemsetD8Async, cu.cuLaunchHostFunc},
          context, threads, memory);
      cu.cuCtxSetCurrent(context);
      for (std::uint64_t i = 0; i < rounds && storm.failure().empty(); ++i, ++rounds_) {
        storm.round(steps);
      }
      storm.finish();
      failure_ = storm.failure();
      rounds_ = rounds;  // no test waits for more of them
    });
  }
  std::uint64_t rounds() const { return rounds_.load(); }
  Answer end() {
    thread_.join();
    return {failure_.empty() ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN, {rounds()}, failure_};
  }

 private:
  std::thread thread_;
  std::atomic<std::uint64_t> rounds_{0};
  std::string failure_;
};

Grabber grabber;
ConcurrentStorm storm;
Worker worker;
std::atomic<bool> stalled{false};
std::map<unsigned long long, std::thread> stuck_threads;

void stall(void*) {
  while (stalled.load()) stalled.wait(true);
}

void go_on() {
  stalled.store(false);
  stalled.notify_all();
}

Answer sum(CUdeviceptr address, std::size_t size) {
  std::vector<unsigned char> bytes(size);
  Answer answer{cu.cuMemcpyDtoH_v2(bytes.data(), address, size), {}, {}};
  unsigned long long hash = 0xcbf29ce484222325;
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  answer.values = {hash};
  return answer;
}

/// Descriptors above the standard ones, and how many of them are the door's card.
Numbers descriptors() {
  Numbers counts{0, 0};
  DIR* entries = ::opendir("/proc/self/fd");
  const std::string own = std::to_string(::dirfd(entries));
  while (const dirent* entry = ::readdir(entries)) {
    if (std::atoi(entry->d_name) <= 2 || own == entry->d_name) continue;
    char target[128] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (::readlink(path.c_str(), target, sizeof(target) - 1) <= 0) continue;
    ++counts[0];
    if (std::strstr(target, "gcr-preload") != nullptr) ++counts[1];
  }
  ::closedir(entries);
  return counts;
}

/// The child of a fork: its descriptors, cards, and cuInit's result.
Answer fork_child() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {CUDA_ERROR_OPERATING_SYSTEM, {}, {}};
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    Numbers found = descriptors();
    found[0] -= 1;  // the pipe itself
    [[maybe_unused]] ssize_t ignored = ::write(ends[1], found.data(), 2 * sizeof(found[0]));
    ::_exit(0);
  }
  ::close(ends[1]);
  Numbers found(2);
  const bool got = ::read(ends[0], found.data(), 2 * sizeof(found[0])) == 2 * sizeof(found[0]);
  ::close(ends[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  return {got && status == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN, found, {}};
}

/// The names of the descriptors that a program started by exec sees.
Answer exec_child() {
  FILE* listing = ::popen("ls -l /proc/self/fd", "r");
  std::string all;
  char line[512];
  while (std::fgets(line, sizeof(line), listing) != nullptr) all += line;
  ::pclose(listing);
  const bool clean = all.find("gcr-preload") == std::string::npos;
  return {CUDA_SUCCESS, {clean ? 1ull : 0ull}, {}};
}

Answer ipc_get(CUdeviceptr address) {
  CUipcMemHandle handle{};
  Answer answer{cu.cuIpcGetMemHandle(&handle, address), {}, {}};
  for (const char byte : handle.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
    answer.text += digits;
  }
  return answer;
}

Answer ipc_open(const std::string& digits) {
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof(handle.reserved); ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  CUdeviceptr address = 0;
  Answer answer{cu.cuIpcOpenMemHandle_v2(&address, handle, 1), {}, {}};
  answer.values = {address};
  return answer;
}

Answer attributes(CUdeviceptr address, const Numbers& which) {
  std::vector<CUpointer_attribute> names;
  Numbers values(which.size(), 0);
  std::vector<void*> places;
  for (std::size_t i = 0; i < which.size(); ++i) {
    names.push_back(static_cast<CUpointer_attribute>(which[i]));
    places.push_back(&values[i]);
  }
  const CUresult result = cu.cuPointerGetAttributes(static_cast<unsigned>(names.size()),
                                                    names.data(), places.data(), address);
  return {result, values, {}};
}

template <class T>
Answer pool_attribute(unsigned long long pool, unsigned long long which) {
  T value{};
  const CUresult result = cu.cuMemPoolGetAttribute(reinterpret_cast<CUmemoryPool>(pool),
                                                   static_cast<CUmemPool_attribute>(which), &value);
  return {result, {static_cast<unsigned long long>(value)}, {}};
}

/// A managed variable of a module or of a library, which is the second value.
Answer managed_variable(bool of_library) {
  constexpr char kText[] =
      ".version 8.0\n.target sm_70\n.address_size 64\n"
      ".visible .global .attribute(.managed) .align 4 .u32 kept[256];\n";
  CUdeviceptr address = 0;
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUresult result =
      of_library ? cu.cuLibraryLoadData(&library, kText, nullptr, nullptr, 0, nullptr, nullptr, 0)
                 : cu.cuModuleLoadData(&module, kText);
  if (result == CUDA_SUCCESS) {
    result = of_library ? cu.cuLibraryGetManaged(&address, nullptr, library, "kept")
                        : cu.cuModuleGetGlobal_v2(&address, nullptr, module, "kept");
  }
  return {result, {address, of_library ? number(library) : number(module)}, {}};
}

using Command = std::function<Answer(const Numbers&)>;

void add_memory_commands(std::map<std::string, Command>& commands) {
  commands["set_limit"] = [](const Numbers& n) {
    return Answer{cu.cuCtxSetLimit(static_cast<CUlimit>(n[0]), n[1]), {}, {}};
  };
  commands["limit"] = [](const Numbers& n) {
    std::size_t value = 0;
    const CUresult result = cu.cuCtxGetLimit(&value, static_cast<CUlimit>(n[0]));
    return Answer{result, {value}, {}};
  };
  commands["alloc"] = [](const Numbers& n) {
    CUdeviceptr address = 0;
    const CUresult result = cu.cuMemAlloc_v2(&address, n[0]);
    return Answer{result, {address}, {}};
  };
  commands["pitch"] = [](const Numbers& n) {
    CUdeviceptr address = 0;
    std::size_t pitch = 0;
    const CUresult result =
        cu.cuMemAllocPitch_v2(&address, &pitch, n[0], n[1], static_cast<unsigned>(n[2]));
    return Answer{result, {address, pitch}, {}};
  };
  commands["managed"] = [](const Numbers& n) {
    CUdeviceptr address = 0;
    const CUresult result = cu.cuMemAllocManaged(&address, n[0], 1);
    return Answer{result, {address}, {}};
  };
  commands["managed_variable"] = [](const Numbers& n) { return managed_variable(n[0] != 0); };
  commands["unload"] = [](const Numbers& n) {
    return Answer{n[1] != 0 ? cu.cuLibraryUnload(reinterpret_cast<CUlibrary>(n[0]))
                            : cu.cuModuleUnload(reinterpret_cast<CUmodule>(n[0])),
                  {},
                  {}};
  };
  commands["free"] = [](const Numbers& n) { return Answer{cu.cuMemFree_v2(n[0]), {}, {}}; };
  commands["free_async"] = [](const Numbers& n) {
    return Answer{cu.cuMemFreeAsync(n[0], stream_of(n[1])), {}, {}};
  };
  commands["fill"] = [](const Numbers& n) {
    return Answer{cu.cuMemsetD8_v2(n[0], static_cast<unsigned char>(n[2]), n[1]), {}, {}};
  };
  commands["register"] = [](const Numbers& n) {
    void* const memory = std::malloc(n[0]);
    return Answer{
        cu.cuMemHostRegister_v2(memory, n[0], 0), {reinterpret_cast<std::uintptr_t>(memory)}, {}};
  };
  commands["register_again"] = [](const Numbers& n) {
    return Answer{cu.cuMemHostRegister_v2(reinterpret_cast<void*>(n[0]), n[1], 0), {}, {}};
  };
  commands["unregister"] = [](const Numbers& n) {
    return Answer{cu.cuMemHostUnregister(reinterpret_cast<void*>(n[0])), {}, {}};
  };
  commands["sum"] = [](const Numbers& n) { return sum(n[0], n[1]); };
  commands["range"] = [](const Numbers& n) {
    CUdeviceptr base = 0;
    std::size_t size = 0;
    const CUresult result = cu.cuMemGetAddressRange_v2(&base, &size, n[0]);
    return Answer{result, {base, size}, {}};
  };
  // Whether dlsym and cuGetProcAddress find a function that is in no table.
  commands["unknown"] = [](const Numbers&) {
    const char* const name = "cuLaterThanEveryTable";
    void* const by_name = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    void* looked_up = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult result = cu.cuGetProcAddress_v2(name, &looked_up, 13000, 0, &status);
    return Answer{result, {number(by_name), number(looked_up), status}, {}};
  };
  commands["info"] = [](const Numbers&) {
    std::size_t free = 0, total = 0;
    const CUresult result = cu.cuMemGetInfo_v2(&free, &total);
    return Answer{result, {free, total}, {}};
  };
  commands["attribute"] = [](const Numbers& n) {
    unsigned long long value = 0;
    const CUresult result =
        cu.cuPointerGetAttribute(&value, static_cast<CUpointer_attribute>(n[1]), n[0]);
    return Answer{result, {value}, {}};
  };
  commands["attributes"] = [](const Numbers& n) {
    return attributes(n[0], Numbers(n.begin() + 1, n.end()));
  };
  commands["sync_memops"] = [](const Numbers& n) {
    const unsigned value = static_cast<unsigned>(n[1]);
    return Answer{cu.cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, n[0]), {}, {}};
  };
  commands["ipc_get"] = [](const Numbers& n) { return ipc_get(n[0]); };
  commands["ipc_close"] = [](const Numbers& n) {
    return Answer{cu.cuIpcCloseMemHandle(n[0]), {}, {}};
  };
}

void add_pool_commands(std::map<std::string, Command>& commands) {
  const auto pool_of = [](unsigned long long value) {
    return reinterpret_cast<CUmemoryPool>(value);
  };
  commands["pool"] = [](const Numbers& n) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(n[0])};
    properties.maxSize = n.size() > 1 ? n[1] : 0;
    CUmemoryPool pool = nullptr;
    const CUresult result = cu.cuMemPoolCreate(&pool, &properties);
    return Answer{result, {number(pool)}, {}};
  };
  commands["default_pool"] = [](const Numbers& n) {
    CUmemoryPool pool = nullptr;
    const CUresult result = cu.cuDeviceGetDefaultMemPool(&pool, static_cast<int>(n[0]));
    return Answer{result, {number(pool)}, {}};
  };
  commands["set_pool"] = [=](const Numbers& n) {
    return Answer{cu.cuDeviceSetMemPool(static_cast<int>(n[0]), pool_of(n[1])), {}, {}};
  };
  commands["destroy_pool"] = [=](const Numbers& n) {
    return Answer{cu.cuMemPoolDestroy(pool_of(n[0])), {}, {}};
  };
  commands["trim"] = [=](const Numbers& n) {
    return Answer{cu.cuMemPoolTrimTo(pool_of(n[0]), n[1]), {}, {}};
  };
  commands["pool_number"] = [](const Numbers& n) { return pool_attribute<cuuint64_t>(n[0], n[1]); };
  commands["pool_flag"] = [](const Numbers& n) { return pool_attribute<int>(n[0], n[1]); };
  commands["set_pool_number"] = [=](const Numbers& n) {
    cuuint64_t value = n[2];
    return Answer{
        cu.cuMemPoolSetAttribute(pool_of(n[0]), static_cast<CUmemPool_attribute>(n[1]), &value),
        {},
        {}};
  };
  commands["set_pool_flag"] = [=](const Numbers& n) {
    int value = static_cast<int>(n[2]);
    return Answer{
        cu.cuMemPoolSetAttribute(pool_of(n[0]), static_cast<CUmemPool_attribute>(n[1]), &value),
        {},
        {}};
  };
  commands["pool_access"] = [=](const Numbers& n) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(n[1])},
                                 static_cast<CUmemAccess_flags>(n[2])};
    return Answer{cu.cuMemPoolSetAccess(pool_of(n[0]), &access, 1), {}, {}};
  };
  commands["alloc_async"] = [=](const Numbers& n) {
    CUdeviceptr address = 0;
    const CUresult result =
        n.size() > 2 ? cu.cuMemAllocFromPoolAsync(&address, n[0], pool_of(n[2]), stream_of(n[1]))
                     : cu.cuMemAllocAsync(&address, n[0], stream_of(n[1]));
    return Answer{result, {address}, {}};
  };
  commands["fill_async"] = [](const Numbers& n) {
    return Answer{
        cu.cuMemsetD8Async(n[0], static_cast<unsigned char>(n[2]), n[1], stream_of(n[3])), {}, {}};
  };
  commands["fill_rows"] = [](const Numbers& n) {
    return Answer{cu.cuMemsetD2D8Async(n[0], n[1], static_cast<unsigned char>(n[2]), n[3], n[4],
                                       stream_of(n[5])),
                  {},
                  {}};
  };
  commands["wait_for"] = [](const Numbers& n) {
    CUevent event = nullptr;
    cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    cu.cuEventRecord(event, stream_of(n[0]));
    const CUresult result = cu.cuStreamWaitEvent(stream_of(n[1]), event, 0);
    cu.cuEventDestroy_v2(event);
    return Answer{result, {}, {}};
  };
  commands["sync_stream"] = [](const Numbers& n) {
    return Answer{cu.cuStreamSynchronize(stream_of(n[0])), {}, {}};
  };
}

void add_vmm_commands(std::map<std::string, Command>& commands) {
  commands["reserve"] = [](const Numbers& n) {
    CUdeviceptr address = 0;
    const CUresult result = cu.cuMemAddressReserve(&address, n[0], 0, 0, 0);
    return Answer{result, {address}, {}};
  };
  commands["unreserve"] = [](const Numbers& n) {
    return Answer{cu.cuMemAddressFree(n[0], n[1]), {}, {}};
  };
  commands["create"] = [](const Numbers& n) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(n[1])};
    properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(n[2]);
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cu.cuMemCreate(&handle, n[0], &properties, 0);
    return Answer{result, {handle}, {}};
  };
  commands["release"] = [](const Numbers& n) { return Answer{cu.cuMemRelease(n[0]), {}, {}}; };
  commands["map"] = [](const Numbers& n) {
    return Answer{cu.cuMemMap(n[0], n[1], n[2], n[3], 0), {}, {}};
  };
  commands["unmap"] = [](const Numbers& n) { return Answer{cu.cuMemUnmap(n[0], n[1]), {}, {}}; };
  commands["access"] = [](const Numbers& n) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(n[2])},
                                 static_cast<CUmemAccess_flags>(n[3])};
    return Answer{cu.cuMemSetAccess(n[0], n[1], &access, 1), {}, {}};
  };
  commands["retain"] = [](const Numbers& n) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(n[0]));
    return Answer{result, {handle}, {}};
  };
  commands["properties"] = [](const Numbers& n) {
    CUmemAllocationProp properties{};
    const CUresult result = cu.cuMemGetAllocationPropertiesFromHandle(&properties, n[0]);
    return Answer{result,
                  {static_cast<unsigned long long>(properties.requestedHandleTypes),
                   static_cast<unsigned long long>(properties.location.id)},
                  {}};
  };
  commands["export"] = [](const Numbers& n) {
    int fd = -1;
    const CUresult result =
        cu.cuMemExportToShareableHandle(&fd, n[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return Answer{result, {static_cast<unsigned long long>(fd)}, {}};
  };
  commands["import"] = [](const Numbers& n) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cu.cuMemImportFromShareableHandle(
        &handle, reinterpret_cast<void*>(n[0]), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ::close(static_cast<int>(n[0]));
    return Answer{result, {handle}, {}};
  };
}

void add_context_commands(std::map<std::string, Command>& commands) {
  commands["init"] = [](const Numbers&) { return Answer{cu.cuInit(0), {}, {}}; };
  commands["context"] = [](const Numbers& n) {
    CUcontext context = nullptr;
    const CUresult result = cu.cuCtxCreate_v2(&context, 0, static_cast<int>(n[0]));
    return Answer{result, {number(context)}, {}};
  };
  commands["destroy"] = [](const Numbers& n) {
    return Answer{cu.cuCtxDestroy_v2(context_of(n[0])), {}, {}};
  };
  commands["current"] = [](const Numbers& n) {
    return Answer{cu.cuCtxSetCurrent(context_of(n[0])), {}, {}};
  };
  commands["primary"] = [](const Numbers& n) {
    CUcontext context = nullptr;
    CUresult result = cu.cuDevicePrimaryCtxRetain(&context, static_cast<int>(n[0]));
    if (result == CUDA_SUCCESS) result = cu.cuCtxSetCurrent(context);
    return Answer{result, {number(context)}, {}};
  };
  commands["green"] = [](const Numbers& n) {
    CUgreenCtx green = nullptr;
    CUcontext context = nullptr;
    CUresult result = cu.cuGreenCtxCreate(&green, nullptr, static_cast<int>(n[0]), 1);
    if (result == CUDA_SUCCESS) result = cu.cuCtxFromGreenCtx(&context, green);
    if (result == CUDA_SUCCESS) result = cu.cuCtxSetCurrent(context);
    return Answer{result, {number(green)}, {}};
  };
  commands["destroy_green"] = [](const Numbers& n) {
    return Answer{cu.cuGreenCtxDestroy(reinterpret_cast<CUgreenCtx>(n[0])), {}, {}};
  };
  commands["primary_flags"] = [](const Numbers& n) {
    return Answer{
        cu.cuDevicePrimaryCtxSetFlags_v2(static_cast<int>(n[0]), static_cast<unsigned>(n[1])),
        {},
        {}};
  };
  commands["release_primary"] = [](const Numbers& n) {
    return Answer{cu.cuDevicePrimaryCtxRelease_v2(static_cast<int>(n[0])), {}, {}};
  };
  commands["peer_enable"] = [](const Numbers& n) {
    return Answer{cu.cuCtxEnablePeerAccess(context_of(n[0]), 0), {}, {}};
  };
  commands["peer_disable"] = [](const Numbers& n) {
    return Answer{cu.cuCtxDisablePeerAccess(context_of(n[0])), {}, {}};
  };
  commands["stream"] = [](const Numbers&) {
    CUstream stream = nullptr;
    const CUresult result = cu.cuStreamCreate(&stream, 1);
    return Answer{result, {number(stream)}, {}};
  };
  commands["destroy_stream"] = [](const Numbers& n) {
    return Answer{cu.cuStreamDestroy_v2(stream_of(n[0])), {}, {}};
  };
  commands["capture"] = [](const Numbers& n) {
    return Answer{
        cu.cuStreamBeginCapture_v2(stream_of(n[0]), CU_STREAM_CAPTURE_MODE_RELAXED), {}, {}};
  };
  commands["end_capture"] = [](const Numbers& n) {
    CUgraph graph = nullptr;
    const CUresult result = cu.cuStreamEndCapture(stream_of(n[0]), &graph);
    return Answer{result, {number(graph)}, {}};
  };
  commands["sync"] = [](const Numbers&) { return Answer{cu.cuCtxSynchronize(), {}, {}}; };
}

void add_process_commands(std::map<std::string, Command>& commands) {
  commands["work"] = [](const Numbers& n) {
    worker.start(context_of(n[0]), n[1]);
    return Answer{};
  };
  commands["worked"] = [](const Numbers&) { return Answer{CUDA_SUCCESS, worker.progress(), {}}; };
  commands["rest"] = [](const Numbers&) { return Answer{CUDA_SUCCESS, worker.stop(), {}}; };
  commands["grab"] = [](const Numbers& n) {
    grabber.start(context_of(n[0]), n[1]);
    return Answer{};
  };
  commands["free_all"] = [](const Numbers&) {
    return Answer{CUDA_SUCCESS, grabber.free_all(), {}};
  };
  commands["storm"] = [](const Numbers& n) {
    storm.start(
        context_of(n[0]), n[1], n[2], n[3],
        n.size() > 4 ? gcr::apps::StormMemory::kStreamOrdered : gcr::apps::StormMemory::kPlain);
    return Answer{};
  };
  commands["stormed"] = [](const Numbers&) { return Answer{CUDA_SUCCESS, {storm.rounds()}, {}}; };
  commands["storm_end"] = [](const Numbers&) { return storm.end(); };
  commands["stall"] = [](const Numbers& n) {
    stalled.store(true);
    return Answer{cu.cuLaunchHostFunc(stream_of(n[0]), stall, nullptr), {}, {}};
  };
  commands["stalled"] = [](const Numbers&) {
    return Answer{CUDA_SUCCESS, {stalled.load() ? 1ull : 0ull}, {}};
  };
  commands["go_on"] = [](const Numbers&) {
    go_on();
    return Answer{};
  };
  commands["go_on_later"] = [](const Numbers& n) {
    std::thread([milliseconds = n[0]] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      go_on();
    }).detach();
    return Answer{};
  };
  // A gated call that does not return before "go_on": a synchronous copy behind a stalled stream.
  commands["stuck"] = [](const Numbers& n) {
    stuck_threads[n[1]] = std::thread([n] {
      std::vector<char> bytes(4096);
      cu.cuCtxSetCurrent(context_of(n[0]));
      cu.cuMemcpyDtoH_v2(bytes.data(), n[1], bytes.size());
    });
    return Answer{};
  };
  commands["unstuck"] = [](const Numbers& n) {
    stuck_threads[n[0]].join();
    stuck_threads.erase(n[0]);
    return Answer{};
  };
  commands["descriptors"] = [](const Numbers&) { return Answer{CUDA_SUCCESS, descriptors(), {}}; };
  commands["close_from"] = [](const Numbers& n) {
    for (int fd = static_cast<int>(n[0]); fd < 4096; ++fd) ::close(fd);
    return Answer{};
  };
  commands["fork"] = [](const Numbers&) { return fork_child(); };
  commands["exec"] = [](const Numbers&) { return exec_child(); };
  // From now on the commands use HIP, or CUDA again.
  commands["namespace"] = [](const Numbers&) {
    const bool hip = std::getenv("SUBJECT_USES_HIP") != nullptr;
    void* const driver = dlmopen(LM_ID_NEWLM, hip ? "libamdhip64.so.6" : "libcuda.so.1", RTLD_NOW);
    return Answer{driver != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND, {}, {}};
  };
  commands["use_hip"] = [](const Numbers&) {
    cu = {};
    return Answer{cu.load_hip() ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND, {}, {}};
  };
  commands["use_cuda"] = [](const Numbers&) {
    cu = {};
    return Answer{cu.load() ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND, {}, {}};
  };
  commands["last_error"] = [](const Numbers&) { return Answer{cu.hip_last_error(), {}, {}}; };
}

Answer run(const std::map<std::string, Command>& commands, std::istringstream& words) {
  std::string name, word;
  words >> name;
  if (name == "ipc_open") {
    words >> word;
    return ipc_open(word);
  }
  Numbers numbers;
  while (words >> word) numbers.push_back(std::strtoull(word.c_str(), nullptr, 0));
  const auto command = commands.find(name);
  if (command == commands.end()) return {CUDA_ERROR_UNKNOWN, {}, "no such command: " + name};
  return command->second(numbers);
}

}  // namespace

int main() {
  std::map<std::string, Command> commands;
  add_memory_commands(commands);
  add_pool_commands(commands);
  add_vmm_commands(commands);
  add_context_commands(commands);
  add_process_commands(commands);
  if (std::getenv("SUBJECT_USES_HIP") != nullptr ? !cu.load_hip() : !cu.load()) return 1;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    const Answer answer = run(commands, words);
    std::ostringstream out;
    out << (answer.result == CUDA_SUCCESS ? "ok" : "error");
    if (answer.result != CUDA_SUCCESS) out << " " << answer.result;
    if (answer.result == CUDA_SUCCESS) {
      for (const unsigned long long value : answer.values) out << " 0x" << std::hex << value;
    }
    if (!answer.text.empty()) out << " " << answer.text;
    std::cout << out.str() << std::endl;
  }
  ::_exit(0);
}
