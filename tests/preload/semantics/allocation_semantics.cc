// A program's view of GPU memory that it allocates, with CUDA or with HIP: facts without addresses,
// one per line, the same with and without the preload library.
//
// Without an argument the program collects them twice, in child processes, without the library and
// with it (from GCR_PRELOAD_LIBRARY, or from ../lib next to its own folder), prints both where they
// differ, and ends with status 1 if any does. With "facts" it prints those of its own process.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/preload/driver_by_name.h"

namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

gcr::preload::test::Api cu;
/// HIP replaces CUDA.
const bool uses_hip = std::getenv("SUBJECT_USES_HIP") != nullptr;

void fact(const std::string& name, const std::string& value) {
  std::printf("%s: %s\n", name.c_str(), value.c_str());
}
void fact(const std::string& name, bool value) { fact(name, std::string(value ? "yes" : "no")); }
void result(const std::string& name, CUresult value) { fact(name, std::to_string(value)); }

/// Calls that must succeed.
void need(CUresult value, const char* what) {
  if (value == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s failed: %d\n", what, value);
  std::exit(2);
}

CUdeviceptr allocated(std::size_t bytes) {
  CUdeviceptr address = 0;
  need(cu.cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
  return address;
}

/// The range of an address, relative to its expected allocation.
std::string range_of(CUdeviceptr address, CUdeviceptr base) {
  CUdeviceptr start = 0;
  std::size_t bytes = 0;
  const CUresult told = cu.cuMemGetAddressRange_v2(&start, &bytes, address);
  if (told != CUDA_SUCCESS) return "error " + std::to_string(told);
  return std::to_string(static_cast<long long>(start - base)) + " +" + std::to_string(bytes);
}

/// An attribute; addresses relative to the allocation.
std::string attribute_of(CUpointer_attribute attribute, CUdeviceptr address, CUdeviceptr base) {
  unsigned long long value = 0;
  const CUresult told = cu.cuPointerGetAttribute(&value, attribute, address);
  if (told != CUDA_SUCCESS) return "error " + std::to_string(told);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
      CUcontext current = nullptr;
      cu.cuCtxGetCurrent(&current);
      return value == reinterpret_cast<std::uintptr_t>(current) ? "the current" : "another";
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return std::to_string(static_cast<long long>(value - base));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return value <= base && value % kKiB == 0 ? "at or below it" : "above it";
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return value % (2 * kMiB) == 0 ? "blocks of 2 MiB" : std::to_string(value);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return value != 0 ? "a number" : "0";
    default:
      return std::to_string(value);
  }
}

void attributes(const std::string& name, CUdeviceptr address, CUdeviceptr base) {
  for (unsigned which = CU_POINTER_ATTRIBUTE_CONTEXT; which <= CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
       ++which) {
    if (which == CU_POINTER_ATTRIBUTE_P2P_TOKENS) continue;
    fact(name + ", attribute " + std::to_string(which),
         attribute_of(static_cast<CUpointer_attribute>(which), address, base));
  }
}

unsigned long long buffer_id(CUdeviceptr address) {
  unsigned long long id = 0;
  cu.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
  return id;
}

bool holds(CUdeviceptr address, std::size_t bytes, unsigned char value) {
  std::vector<unsigned char> content(bytes);
  return cu.cuMemcpyDtoH_v2(content.data(), address, bytes) == CUDA_SUCCESS &&
         std::ranges::all_of(content, [=](unsigned char byte) { return byte == value; });
}

void sizes(const std::string& prefix, const std::vector<std::size_t>& all_bytes) {
  for (const std::size_t bytes : all_bytes) {
    const std::string name = prefix + "allocation of " + std::to_string(bytes);
    const CUdeviceptr address = allocated(bytes);
    const std::size_t alignment = bytes < 2 * kMiB ? 512 : 2 * kMiB;
    fact(name + ", aligned", address % alignment == 0);
    fact(name + ", range at its start", range_of(address, address));
    fact(name + ", range at its last byte", range_of(address + bytes - 1, address));
    if (bytes % 512 != 0) fact(name + ", range behind it", range_of(address + bytes, address));
    attributes(name, address + bytes / 2, address);
    cu.cuMemsetD8_v2(address, 9, bytes);
    fact(name + ", keeps what is written", holds(address, bytes, 9));
    result(name + ", free of an address inside", cu.cuMemFree_v2(address + bytes / 2 + 1));
    result(name + ", free", cu.cuMemFree_v2(address));
    result(name + ", second free", cu.cuMemFree_v2(address));
    fact(name + ", range when freed", range_of(address, address));
    attributes(name + ", freed", address, address);
  }
}

void odd_calls() {
  CUdeviceptr address = 0;
  result("allocation of 0", cu.cuMemAlloc_v2(&address, 0));
  result("allocation to nowhere", cu.cuMemAlloc_v2(nullptr, 4096));
  result("free of 0", cu.cuMemFree_v2(0));
  result("free of host memory", cu.cuMemFree_v2(reinterpret_cast<CUdeviceptr>(&address)));
}

/// Copies of any addresses; without an allocation they would be the host's.
void touching_by_address(const std::string& name, CUdeviceptr address, std::size_t bytes) {
  std::vector<unsigned char> host(bytes);
  const auto place = reinterpret_cast<CUdeviceptr>(host.data());
  result(name + ", read by addresses", cu.cuMemcpy(place, address, bytes));
  result(name + ", written by addresses", cu.cuMemcpy(address, place, bytes));
  result(name + ", read by addresses in a stream",
         cu.cuMemcpyAsync(place, address, bytes, nullptr));
  result(name + ", written by addresses in a stream",
         cu.cuMemcpyAsync(address, place, bytes, nullptr));
  cu.cuCtxSynchronize();
}

/// Copies and fills of `bytes` from `address` on, and the result of each.
void touching(const std::string& name, CUdeviceptr address, std::size_t bytes, CUdeviceptr other) {
  std::vector<unsigned char> host(bytes);
  CUstream stream = nullptr;
  need(cu.cuStreamCreate(&stream, 1), "cuStreamCreate");
  result(name + ", read", cu.cuMemcpyDtoH_v2(host.data(), address, bytes));
  result(name + ", written", cu.cuMemcpyHtoD_v2(address, host.data(), bytes));
  result(name + ", copied from", cu.cuMemcpyDtoD_v2(other, address, bytes));
  result(name + ", copied to", cu.cuMemcpyDtoD_v2(address, other, bytes));
  result(name + ", read in a stream", cu.cuMemcpyDtoHAsync_v2(host.data(), address, bytes, stream));
  result(name + ", written in a stream",
         cu.cuMemcpyHtoDAsync_v2(address, host.data(), bytes, stream));
  result(name + ", copied from in a stream",
         cu.cuMemcpyDtoDAsync_v2(other, address, bytes, stream));
  result(name + ", copied to in a stream", cu.cuMemcpyDtoDAsync_v2(address, other, bytes, stream));
  result(name + ", bytes set", cu.cuMemsetD8_v2(address, 1, bytes));
  result(name + ", bytes set in a stream", cu.cuMemsetD8Async(address, 1, bytes, stream));
  result(name + ", shorts set", cu.cuMemsetD16_v2(address, 1, bytes / 2));
  result(name + ", shorts set in a stream", cu.cuMemsetD16Async(address, 1, bytes / 2, stream));
  result(name + ", words set", cu.cuMemsetD32_v2(address, 1, bytes / 4));
  result(name + ", words set in a stream", cu.cuMemsetD32Async(address, 1, bytes / 4, stream));
  CUcontext context = nullptr;
  cu.cuCtxGetCurrent(&context);
  result(name + ", copied between contexts",
         cu.cuMemcpyPeer(other, context, address, context, bytes));
  result(name + ", copied between contexts in a stream",
         cu.cuMemcpyPeerAsync(address, context, other, context, bytes, stream));
  result(name + ", read in the thread's stream",
         cu.cuMemcpyDtoH_v2_ptds(host.data(), address, bytes));
  result(name + ", set in the thread's stream",
         cu.cuMemsetD8Async_ptsz(address, 1, bytes, nullptr));
  result(name + ", then", cu.cuCtxSynchronize());
  cu.cuStreamDestroy_v2(stream);
}

/// Copies and fills that reach beyond their allocation. None ends within the 512 bytes in which the
/// allocation ends: there the library does not check. In HIP it does not check at all.
void beyond(const std::string& prefix) {
  if (uses_hip) return;
  const CUdeviceptr other = allocated(20 * kMiB);
  for (const std::size_t bytes :
       {std::size_t{512}, 100 * kKiB, 2 * kMiB + 512, 3 * kMiB, 17 * kMiB + 1536}) {
    const std::string name = prefix + "of " + std::to_string(bytes);
    const CUdeviceptr address = allocated(bytes);
    const CUdeviceptr neighbour = allocated(bytes);
    cu.cuMemsetD8_v2(neighbour, 7, bytes);
    touching(name + ", all", address, bytes, other);
    touching(name + ", the end", address + bytes - 8, 8, other);
    touching(name + ", nothing at the end", address + bytes - 8, 0, other);
    touching(name + ", across the end", address + bytes - 8, 16, other);
    touching(name + ", all and more", address, bytes + 8, other);
    touching_by_address(name + ", the end", address + bytes - 8, 8);
    touching_by_address(name + ", across the end", address + bytes - 8, 16);
    fact(name + ", the neighbour is intact", holds(neighbour, bytes, 7));
    cu.cuMemFree_v2(address);
    touching(name + ", freed", address, 8, other);
    cu.cuMemFree_v2(neighbour);
  }
  cu.cuMemFree_v2(other);
}

void identities() {
  const CUdeviceptr first = allocated(4096);
  const CUdeviceptr second = allocated(4096);
  const unsigned long long id = buffer_id(second);
  fact("buffer ids are the same within an allocation", buffer_id(second + 4095) == id);
  fact("buffer ids differ between allocations", buffer_id(first) != id);
  cu.cuMemFree_v2(second);
  const CUdeviceptr third = allocated(4096);
  fact("buffer ids differ after a free", buffer_id(third) != id);
  unsigned int on = 1;
  result("synchronous operations, set",
         cu.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, first));
  fact("synchronous operations, of it", attribute_of(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, first, 0));
  fact("synchronous operations, of another",
       attribute_of(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, third, 0));
  CUmemGenericAllocationHandle handle = 0;
  result("a handle of an allocation",
         cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(first)));
  cu.cuMemFree_v2(first);
  cu.cuMemFree_v2(third);
}

void many() {
  std::map<CUdeviceptr, std::size_t> live;
  bool apart = true;
  for (std::size_t i = 0; i < 2000; ++i) {
    const std::size_t bytes = 1 + i * 7919 % (96 * kKiB);
    const CUdeviceptr address = allocated(bytes);
    cu.cuMemsetD8_v2(address, static_cast<unsigned char>(bytes), bytes);
    const auto [here, added] = live.emplace(address, bytes);
    apart = apart && added;
    if (here != live.begin())
      apart = apart && std::prev(here)->first + std::prev(here)->second <= address;
    if (std::next(here) != live.end()) apart = apart && address + bytes <= std::next(here)->first;
  }
  fact("2000 allocations do not overlap", apart);
  bool intact = true;
  std::size_t turn = 0;
  for (auto here = live.begin(); here != live.end(); ++turn) {
    intact = intact && holds(here->first, here->second, static_cast<unsigned char>(here->second));
    intact = intact && (turn % 2 != 0 || cu.cuMemFree_v2(here->first) == CUDA_SUCCESS);
    here = turn % 2 == 0 ? live.erase(here) : std::next(here);
  }
  for (const auto& [address, bytes] : live) {
    intact = intact && holds(address, bytes, static_cast<unsigned char>(bytes));
    cu.cuMemFree_v2(address);
  }
  fact("2000 allocations keep their contents while others are freed", intact);
}

void rows() {
  for (const std::size_t width :
       {std::size_t{1}, std::size_t{100}, std::size_t{513}, std::size_t{4097}, 65 * kKiB}) {
    CUdeviceptr address = 0;
    std::size_t pitch = 0;
    const std::string name = "rows of " + std::to_string(width);
    result(name, cu.cuMemAllocPitch_v2(&address, &pitch, width, 20, 4));
    fact(name + ", pitch", std::to_string(pitch));
    fact(name + ", range", range_of(address + pitch, address));
    result(name + ", free", cu.cuMemFree_v2(address));
  }
}

/// Work that ends when a call has returned, or after a time in which any call returns that does not
/// wait for the work.
struct Work {
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false;
  bool ended_first = false;

  static void run(void* argument) {
    Work& work = *static_cast<Work*>(argument);
    std::unique_lock lock(work.mutex);
    work.ended_first =
        !work.changed.wait_for(lock, std::chrono::seconds(2), [&] { return work.returned; });
  }

  /// Whether the work had ended before.
  bool note_return() {
    const std::lock_guard lock(mutex);
    returned = true;
    changed.notify_all();
    return ended_first;
  }
};

/// Whether a call waits for the work that `context` has.
template <class Call>
bool waits(CUcontext context, unsigned int stream_flags, const Call& call) {
  CUcontext caller = nullptr;
  CUstream stream = nullptr;
  cu.cuCtxGetCurrent(&caller);
  cu.cuCtxSetCurrent(context);
  need(cu.cuStreamCreate(&stream, stream_flags), "cuStreamCreate");
  Work work;
  need(cu.cuLaunchHostFunc(stream, Work::run, &work), "cuLaunchHostFunc");
  cu.cuCtxSetCurrent(caller);
  call();
  const bool waited = work.note_return();
  cu.cuCtxSetCurrent(context);
  cu.cuStreamSynchronize(stream);
  cu.cuStreamDestroy_v2(stream);
  cu.cuCtxSetCurrent(caller);
  return waited;
}

void waiting(CUcontext context) {
  for (const std::size_t bytes : {64 * kKiB, 4 * kMiB}) {
    const std::string name = std::to_string(bytes) + " bytes during work";
    CUdeviceptr address = 0;
    fact(name + ", allocating waits", waits(context, 1, [&] { address = allocated(bytes); }));
    fact(name + ", freeing waits for a stream",
         waits(context, 0, [&] { cu.cuMemFree_v2(address); }));
    address = allocated(bytes);
    fact(name + ", freeing waits for a stream that does not block",
         waits(context, 1, [&] { cu.cuMemFree_v2(address); }));
    address = allocated(bytes);
    CUstream stream = nullptr;
    cu.cuStreamCreate(&stream, 1);
    CUresult freed = CUDA_SUCCESS;
    fact(name + ", freeing in the order of another stream waits",
         waits(context, 1, [&] { freed = cu.cuMemFreeAsync(address, stream); }));
    result(name + ", freeing in the order of a stream", freed);
    cu.cuStreamSynchronize(stream);
    fact(name + ", range after that", range_of(address, address));
    cu.cuStreamDestroy_v2(stream);
  }
}

void contexts(CUcontext primary) {
  int devices = 0;
  cu.cuDeviceGetCount(&devices);
  for (int device = 0; device < std::min(devices, 2); ++device) {
    const std::string name = "another context on GPU " + std::to_string(device);
    const CUdeviceptr outer = allocated(4096);
    CUcontext other = nullptr;
    need(cu.cuCtxCreate_v2(&other, 0, device), "cuCtxCreate");
    const CUdeviceptr inner = allocated(4096);
    attributes(name, inner, inner);
    fact(name + ", attributes of the first's: context",
         attribute_of(CU_POINTER_ATTRIBUTE_CONTEXT, outer, outer));
    fact(name + ", range of the first's", range_of(outer, outer));
    cu.cuMemsetD8_v2(inner, 5, 4096);
    cu.cuCtxSynchronize();  // two contexts are unordered
    cu.cuCtxSetCurrent(primary);
    result(name + ", copy from it", cu.cuMemcpyDtoD_v2(outer, inner, 4096));
    fact(name + ", copied", holds(outer, 4096, 5));
    if (uses_hip && device != 0) {  // releases differ
      cu.cuMemFree_v2(outer);
    } else {
      fact(name + ", freeing of the first's waits for its work",
           waits(other, 1, [&] { cu.cuMemFree_v2(outer); }));
    }
    const CUdeviceptr again = allocated(4096);
    cu.cuCtxSetCurrent(other);
    result(name + ", free of the first's from there", cu.cuMemFree_v2(again));
    cu.cuCtxSetCurrent(primary);
    if (cu.cuCtxEnablePeerAccess(other, 0) == CUDA_SUCCESS) {
      const CUdeviceptr shared = allocated(4096);
      result(name + ", copy from a peer", cu.cuMemcpyDtoD_v2(shared, inner, 4096));
      cu.cuCtxDisablePeerAccess(other);
      cu.cuMemFree_v2(shared);
    }
    result(name + ", destroyed", cu.cuCtxDestroy_v2(other));
    cu.cuCtxSetCurrent(primary);
    fact(name + ", range when it is destroyed", range_of(inner, inner));
    result(name + ", free when it is destroyed", cu.cuMemFree_v2(inner));
  }
  CUdeviceptr address = 0;
  cu.cuCtxSetCurrent(nullptr);
  result("allocation without a context", cu.cuMemAlloc_v2(&address, 4096));
  cu.cuCtxSetCurrent(primary);
  address = allocated(4096);
  cu.cuCtxSetCurrent(nullptr);
  fact("range without a context", range_of(address, address));
  result("free without a context", cu.cuMemFree_v2(address));
  cu.cuCtxSetCurrent(primary);
}

void captures() {
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                          CU_STREAM_CAPTURE_MODE_RELAXED}) {
    const std::string name = "a capture of mode " + std::to_string(mode);
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    need(cu.cuStreamCreate(&stream, 1), "cuStreamCreate");
    need(cu.cuStreamBeginCapture_v2(stream, mode), "cuStreamBeginCapture");
    CUdeviceptr address = 0;
    result(name + ", allocation", cu.cuMemAlloc_v2(&address, 4096));
    result(name + ", its end", cu.cuStreamEndCapture(stream, &graph));
    fact(name + ", graph", graph != nullptr);
    if (address != 0) result(name + ", free", cu.cuMemFree_v2(address));
    cu.cuStreamDestroy_v2(stream);
  }
}

/// Another process of this program; its output.
std::string from_another(const std::vector<std::string>& words) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string command = self;
  for (const std::string& word : words) command += " " + word;
  std::fflush(stdout);
  FILE* output = ::popen(command.c_str(), "r");
  std::string text;
  for (char line[4096]; std::fgets(line, sizeof(line), output) != nullptr;) text += line;
  ::pclose(output);
  return text;
}

std::string in_hexadecimal(const CUipcMemHandle& handle) {
  std::string text;
  for (const char byte : handle.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

CUipcMemHandle from_hexadecimal(const std::string& text) {
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof(handle.reserved); ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

/// In the other process: opens two handles of allocations of so many bytes that hold 1 and 2, and
/// changes the first.
void open_handles(const std::string& first, const std::string& second, std::size_t bytes) {
  CUdeviceptr opened[2] = {};
  CUdeviceptr again = 0;
  result("opening", cu.cuIpcOpenMemHandle_v2(&opened[0], from_hexadecimal(first), 1));
  result("opening the neighbour",
         cu.cuIpcOpenMemHandle_v2(&opened[1], from_hexadecimal(second), 1));
  result("opening again", cu.cuIpcOpenMemHandle_v2(&again, from_hexadecimal(first), 1));
  fact("opened again, at the same address", again == opened[0]);
  for (int i = 0; i < 2; ++i) {
    const std::string name = "opened " + std::to_string(i);
    fact(name + ", content", holds(opened[i], bytes, static_cast<unsigned char>(i + 1)));
    fact(name + ", range", range_of(opened[i] + bytes - 1, opened[i]));
    attributes(name, opened[i], opened[i]);
  }
  cu.cuMemsetD8_v2(opened[0], 3, bytes);
  result("free of what is opened", cu.cuMemFree_v2(opened[0]));
  for (const CUdeviceptr address : {opened[0], opened[0], opened[1], opened[1]}) {
    result("closing", cu.cuIpcCloseMemHandle(address));
  }
  fact("range of what is closed", range_of(opened[0], opened[0]));
}

void sharing(std::size_t bytes) {
  const CUdeviceptr first = allocated(bytes);
  const CUdeviceptr second = allocated(bytes);
  cu.cuMemsetD8_v2(first, 1, bytes);
  cu.cuMemsetD8_v2(second, 2, bytes);
  cu.cuCtxSynchronize();
  CUipcMemHandle handles[3] = {};
  result("a handle", cu.cuIpcGetMemHandle(&handles[0], first));
  result("a handle of the neighbour", cu.cuIpcGetMemHandle(&handles[1], second));
  result("a handle of an address inside", cu.cuIpcGetMemHandle(&handles[2], first + 1000));
  CUdeviceptr own = 0;
  result("opening in the same process", cu.cuIpcOpenMemHandle_v2(&own, handles[0], 1));
  std::printf("%s", from_another({"open", in_hexadecimal(handles[0]), in_hexadecimal(handles[1]),
                                  std::to_string(bytes)})
                        .c_str());
  fact("what the other process wrote", holds(first, bytes, 3));
  result("free of what was shared", cu.cuMemFree_v2(first));
  result("a handle of freed memory", cu.cuIpcGetMemHandle(&handles[0], first));
  cu.cuMemFree_v2(second);
}

CUdeviceptr allocated_in_order(std::size_t bytes, CUstream stream, CUmemoryPool pool) {
  CUdeviceptr address = 0;
  need(cu.cuMemAllocFromPoolAsync(&address, bytes, pool, stream), "cuMemAllocFromPoolAsync");
  return address;
}

template <class T>
T attribute_of(CUmemoryPool pool, CUmemPool_attribute attribute) {
  T value{};
  need(cu.cuMemPoolGetAttribute(pool, attribute, &value), "cuMemPoolGetAttribute");
  return value;
}

/// A pool's allocations, and its errors.
void from_pool(const std::string& name, CUmemoryPool pool, CUstream stream) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, kMiB + 1, 40 * kMiB}) {
    const std::string size = name + ", " + std::to_string(bytes);
    const CUdeviceptr address = allocated_in_order(bytes, stream, pool);
    fact(size + ", aligned to 512", address % 512 == 0);
    fact(size + ", range at its last byte", range_of(address + bytes - 1, address));
    for (const auto which :
         {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
          CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED,
          CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
          CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
          CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES}) {
      fact(size + ", attribute " + std::to_string(which), attribute_of(which, address, address));
    }
    unsigned long long told = 0;
    cu.cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address);
    fact(size + ", of its pool", told == reinterpret_cast<std::uintptr_t>(pool));
    CUipcMemHandle handle{};
    fact(size + ", has an IPC handle", cu.cuIpcGetMemHandle(&handle, address) == CUDA_SUCCESS);
    cu.cuMemsetD8Async(address, 9, bytes, stream);
    cu.cuStreamSynchronize(stream);
    fact(size + ", keeps what is written", holds(address, bytes, 9));
    const bool used = attribute_of<cuuint64_t>(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= bytes &&
                      attribute_of<cuuint64_t>(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= bytes;
    fact(size + ", counted", used);
    result(size + ", free", cu.cuMemFreeAsync(address, stream));
    result(size + ", synchronised", cu.cuStreamSynchronize(stream));
    fact(size + ", used when freed",
         std::to_string(attribute_of<cuuint64_t>(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)));
  }
  CUdeviceptr address = 0;
  result(name + ", allocation to nowhere", cu.cuMemAllocFromPoolAsync(nullptr, 1, pool, stream));
  result(name + ", allocation of far too much",
         cu.cuMemAllocFromPoolAsync(&address, std::size_t{1} << 50, pool, stream));
  result(name + ", free without a stream", cu.cuMemFree_v2(allocated_in_order(1, stream, pool)));
}

void pools() {
  CUstream stream = nullptr;
  need(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  CUmemoryPool pool = nullptr;
  need(cu.cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool");
  from_pool("the default pool", pool, stream);
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool own = nullptr;
  result("a pool", cu.cuMemPoolCreate(&own, &properties));
  for (unsigned flag = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
       flag <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; ++flag) {
    const auto which = static_cast<CUmemPool_attribute>(flag);
    const std::string name = "a pool, flag " + std::to_string(flag);
    fact(name, attribute_of<int>(own, which) != 0);
    int off = 0;
    result(name + ", cleared", cu.cuMemPoolSetAttribute(own, which, &off));
    fact(name + " then", attribute_of<int>(own, which) != 0);
  }
  fact("a pool, threshold",
       std::to_string(attribute_of<cuuint64_t>(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)));
  cuuint64_t threshold = 64 * kMiB;
  result("a pool, threshold set",
         cu.cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  from_pool("a pool", own, stream);
  result("a pool, current", cu.cuDeviceSetMemPool(0, own));
  CUdeviceptr address = 0;
  result("a pool, allocation by the current one", cu.cuMemAllocAsync(&address, 4096, stream));
  unsigned long long told = 0;
  cu.cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address);
  fact("a pool, serves as the current one", told == reinterpret_cast<std::uintptr_t>(own));
  result("a pool, trimmed", cu.cuMemPoolTrimTo(own, 0));
  result("a pool, destroyed", cu.cuMemPoolDestroy(own));
  cu.cuMemsetD8Async(address, 3, 4096, stream);
  cu.cuStreamSynchronize(stream);
  fact("a pool, destroyed, keeps what is allocated", holds(address, 4096, 3));
  result("a pool, destroyed, free", cu.cuMemFreeAsync(address, stream));
  CUmemoryPool current = nullptr;
  cu.cuDeviceGetMemPool(&current, 0);
  fact("the default pool is the current one again", current == pool);
  CUgraph graph = nullptr;
  const CUdeviceptr older = allocated_in_order(4096, stream, pool);
  need(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  result("a capture, allocation", cu.cuMemAllocAsync(&address, 4096, stream));
  result("a capture, free", cu.cuMemFreeAsync(address, stream));
  result("a capture, end", cu.cuStreamEndCapture(stream, &graph));
  result("a capture, free of what was there before", cu.cuMemFreeAsync(older, stream));
  cu.cuStreamSynchronize(stream);
  cu.cuStreamDestroy_v2(stream);
}

/// How much of the last 256 MiB allocations of these sizes get.
void running_out(const std::vector<std::size_t>& all_bytes) {
  constexpr std::size_t kRest = 256 * kMiB;
  std::size_t free_bytes = 0, total_bytes = 0;
  cu.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  const CUdeviceptr most = allocated((free_bytes - kRest) / (2 * kMiB) * (2 * kMiB));
  for (const std::size_t bytes : all_bytes) {
    std::vector<CUdeviceptr> addresses;
    CUdeviceptr address = 0;
    CUresult last = CUDA_SUCCESS;
    while ((last = cu.cuMemAlloc_v2(&address, bytes)) == CUDA_SUCCESS) addresses.push_back(address);
    const std::string name = "out of memory with " + std::to_string(bytes);
    result(name, last);
    std::printf("%s, MiB got: ~%zu\n", name.c_str(), addresses.size() * bytes / kMiB);
    for (const CUdeviceptr one : addresses) cu.cuMemFree_v2(one);
    std::size_t left = 0;
    cu.cuMemGetInfo_v2(&left, &total_bytes);
    std::printf("%s, MiB free afterwards: ~%zu\n", name.c_str(), left / kMiB);
  }
  cu.cuMemFree_v2(most);
}

/// On a full GPU, whether one allocation gets the space between many remaining medium ones.
void fragments() {
  constexpr std::size_t kBytes = 4 * kMiB;
  std::vector<CUdeviceptr> kept, freed;
  for (std::size_t i = 0; i < 64; ++i) {
    std::vector<CUdeviceptr>& which = i % 4 == 0 ? kept : freed;
    which.push_back(allocated(kBytes));
    cu.cuMemsetD8_v2(which.back(), static_cast<unsigned char>(i / 4), kBytes);
  }
  std::size_t free_bytes = 0, total_bytes = 0;
  cu.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  constexpr std::size_t kRest = 64 * kMiB;
  const CUdeviceptr most = allocated((free_bytes - kRest) / (2 * kMiB) * (2 * kMiB));
  for (const CUdeviceptr one : freed) cu.cuMemFree_v2(one);
  CUdeviceptr whole = 0;
  result("one allocation of all that was freed",
         cu.cuMemAlloc_v2(&whole, freed.size() * kBytes + kRest / 4));
  cu.cuMemsetD8_v2(whole, 99, freed.size() * kBytes);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::string name = "kept between what was freed " + std::to_string(i);
    fact(name + ", content", holds(kept[i], kBytes, static_cast<unsigned char>(i)));
    fact(name + ", range", range_of(kept[i] + kBytes - 1, kept[i]));
    attributes(name, kept[i], kept[i]);
    result(name + ", free", cu.cuMemFree_v2(kept[i]));
  }
  cu.cuMemFree_v2(whole);
  cu.cuMemFree_v2(most);
}

/// Medium allocations in a process that has many already: under the library they are in arenas.
void among_many() {
  std::vector<CUdeviceptr> many;
  for (std::size_t i = 0; i < 520; ++i) many.push_back(allocated(2 * kMiB));
  cu.cuMemsetD8_v2(many.front(), 1, 2 * kMiB);
  cu.cuMemsetD8_v2(many.back(), 2, 2 * kMiB);
  sizes("among many, ", {2 * kMiB, 2 * kMiB + 1, 5 * kMiB + 1, 16 * kMiB, 16 * kMiB + 1});
  const CUdeviceptr first = allocated(4 * kMiB);
  const CUdeviceptr second = allocated(4 * kMiB);
  fact("among many, buffer ids differ", buffer_id(first) != buffer_id(second));
  cu.cuMemFree_v2(first);
  cu.cuMemFree_v2(second);
  beyond("among many, ");
  sharing(3 * kMiB);
  running_out({2 * kMiB, 6 * kMiB, 16 * kMiB});
  fragments();
  fact("many keep their contents",
       holds(many.front(), 2 * kMiB, 1) && holds(many.back(), 2 * kMiB, 2));
  for (const CUdeviceptr one : many) cu.cuMemFree_v2(one);
}

CUcontext start() {
  if (uses_hip ? !cu.load_hip() : !cu.load()) {
    std::fprintf(stderr, "there is no driver\n");
    std::exit(2);
  }
  CUcontext context = nullptr;
  need(cu.cuInit(0), "cuInit");
  need(cu.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  need(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  return context;
}

void print_facts() {
  const CUcontext context = start();
  sizes("", {1, 255, 513, 4096, 64 * kKiB, kMiB, kMiB + 1, 2 * kMiB - 1, 2 * kMiB, 5 * kMiB + 1});
  odd_calls();
  identities();
  beyond("");
  many();
  rows();
  waiting(context);
  contexts(context);
  captures();
  sharing(3000);
  pools();
  running_out({64 * kKiB, 700 * kKiB, 2 * kMiB - 1});
  among_many();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// The same line, or the same except for a number of MiB that is smaller by at most one arena. It
/// may be larger: arenas lose less between allocations.
bool same(const std::string& left, const std::string& right) {
  const std::size_t mark = left.find(": ~");
  if (mark == std::string::npos || right.compare(0, mark + 3, left, 0, mark + 3) != 0) {
    return left == right;
  }
  return std::atol(left.c_str() + mark + 3) - std::atol(right.c_str() + mark + 3) <= 64;
}

int compare() {
  const char* chosen = std::getenv("GCR_PRELOAD_LIBRARY");
  const auto built_library =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
      "lib/libgcr-preload.so";
  const std::vector<std::string> without = lines_of(from_another({"facts"}));
  ::setenv("LD_PRELOAD", chosen != nullptr ? chosen : built_library.c_str(), 1);
  const std::vector<std::string> under = lines_of(from_another({"facts"}));
  std::size_t different = 0;
  for (std::size_t i = 0; i < std::max(without.size(), under.size()); ++i) {
    const std::string left = i < without.size() ? without[i] : "nothing";
    const std::string right = i < under.size() ? under[i] : "nothing";
    if (same(left, right)) continue;
    ++different;
    std::printf("without the library  %s\nunder the library    %s\n", left.c_str(), right.c_str());
  }
  std::printf("%zu facts, %zu different\n", without.size(), different);
  return without.empty() || different > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "facts") {
    print_facts();
  } else if (what == "open" && argc == 5) {
    start();
    open_handles(argv[2], argv[3], std::strtoull(argv[4], nullptr, 10));
  } else {
    return compare();
  }
  std::fflush(stdout);
  ::_exit(0);
}
