// A process that uses the software GPU as it is told: one command per line of standard input, one
// line "<CUresult> <value>" of answer. The tests play application and agent with several of these.
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "src/base/units.h"
#include "src/base/uuid.h"
#include "tests/apps/kernels_ptx.h"
#include "tests/softgpu/calls.h"

namespace gcr::softgpu::test {
namespace {

struct Buffer {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
};

/// A host function that stays until it is released.
struct Blocker {
  std::mutex mutex;
  std::condition_variable changed;
  bool released = false;

  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return released; });
  }
  void release() {
    std::lock_guard lock(mutex);
    released = true;
    changed.notify_all();
  }
};

class Subject {
 public:
  Subject() : cu_(SOFTGPU_LIBRARY) {
    if (cu_.cuInit(0) != CUDA_SUCCESS) std::exit(2);
  }

  void run(const std::string& line) {
    in_ = std::istringstream(line);
    out_.str("");
    std::string name;
    in_ >> name;
    const auto command = commands_.find(name);
    const CUresult result = command == commands_.end() ? CUDA_ERROR_UNKNOWN : command->second();
    std::cout << result << out_.str() << std::endl;
  }

 private:
  template <class T>
  T next() {
    T value{};
    in_ >> value;
    return value;
  }
  template <class T>
  void say(const T& value) {
    out_ << ' ' << value;
  }

  CUresult keep(CUresult result, const Buffer& buffer) {
    if (result != CUDA_SUCCESS) return result;
    say(buffers_.size());
    buffers_.push_back(buffer);
    return result;
  }

  CUresult context() {
    CUcontext context = nullptr;
    const CUresult result = cu_.cuCtxCreate_v2(&context, 0, next<int>());
    say(reinterpret_cast<std::uintptr_t>(context));
    return result;
  }

  CUresult alloc() {
    Buffer buffer;
    buffer.bytes = next<std::size_t>();
    return keep(cu_.cuMemAlloc_v2(&buffer.address, buffer.bytes), buffer);
  }
  CUresult managed() {
    Buffer buffer;
    buffer.bytes = next<std::size_t>();
    return keep(cu_.cuMemAllocManaged(&buffer.address, buffer.bytes, CU_MEM_ATTACH_GLOBAL), buffer);
  }
  CUresult pool() {
    Buffer buffer;
    buffer.bytes = next<std::size_t>();
    return keep(cu_.cuMemAllocAsync(&buffer.address, buffer.bytes, nullptr), buffer);
  }
  CUresult variable() {
    CUmodule module = nullptr;
    Buffer buffer;
    if (const CUresult result = cu_.cuModuleLoadData(&module, apps::kKernelsPtx)) return result;
    return keep(
        cu_.cuModuleGetGlobal_v2(&buffer.address, &buffer.bytes, module, "gcr_counter_twin"),
        buffer);
  }
  CUresult free() { return cu_.cuMemFree_v2(buffers_.at(next<std::size_t>()).address); }

  CUresult map(const Buffer& buffer, int device) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (const CUresult result = cu_.cuMemMap(buffer.address, buffer.bytes, 0, buffer.handle, 0)) {
      return result;
    }
    return cu_.cuMemSetAccess(buffer.address, buffer.bytes, &access, 1);
  }
  CUresult vmm() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    Buffer buffer;
    buffer.bytes = next<std::size_t>();
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, next<int>()};
    if (const CUresult result = cu_.cuMemCreate(&buffer.handle, buffer.bytes, &properties, 0)) {
      return result;
    }
    cu_.cuMemAddressReserve(&buffer.address, buffer.bytes, 0, 0, 0);
    return keep(map(buffer, properties.location.id), buffer);
  }
  CUresult detach() {
    Buffer& buffer = buffers_.at(next<std::size_t>());
    if (const CUresult result = cu_.cuMemUnmap(buffer.address, buffer.bytes)) return result;
    return cu_.cuMemRelease(buffer.handle);
  }
  CUresult export_fd() {
    int file = -1;
    const CUresult result =
        cu_.cuMemExportToShareableHandle(&file, buffers_.at(next<std::size_t>()).handle,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    say(file);
    return result;
  }
  CUresult import_into(Buffer* buffer) {
    const int process = static_cast<int>(::syscall(SYS_pidfd_open, next<int>(), 0));
    const int file = static_cast<int>(::syscall(SYS_pidfd_getfd, process, next<int>(), 0));
    ::close(process);
    const CUresult result = cu_.cuMemImportFromShareableHandle(
        &buffer->handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ::close(file);
    return result;
  }
  CUresult import() {
    Buffer buffer;
    buffer.bytes = next<std::size_t>();
    if (const CUresult result = import_into(&buffer)) return result;
    cu_.cuMemAddressReserve(&buffer.address, buffer.bytes, 0, 0, 0);
    return keep(map(buffer, 0), buffer);
  }
  CUresult attach() {
    Buffer& buffer = buffers_.at(next<std::size_t>());
    if (const CUresult result = import_into(&buffer)) return result;
    return map(buffer, 0);
  }

  CUresult fill() {
    const Buffer& buffer = buffers_.at(next<std::size_t>());
    return cu_.cuMemsetD8_v2(buffer.address, static_cast<unsigned char>(next<int>()), buffer.bytes);
  }
  CUresult holds() {
    const Buffer& buffer = buffers_.at(next<std::size_t>());
    const auto value = static_cast<char>(next<int>());
    std::string bytes(buffer.bytes, '\0');
    const CUresult result = cu_.cuMemcpyDtoH_v2(bytes.data(), buffer.address, buffer.bytes);
    say(bytes == std::string(buffer.bytes, value));
    return result;
  }
  CUresult address() {
    say(buffers_.at(next<std::size_t>()).address);
    return CUDA_SUCCESS;
  }
  CUresult free_bytes() {
    std::size_t free = 0;
    const CUresult result = cu_.cuMemGetInfo_v2(&free, nullptr);
    say(free);
    return result;
  }
  CUresult uuid() {
    CUuuid raw{};
    const CUresult result = cu_.cuDeviceGetUuid_v2(&raw, next<int>());
    Uuid uuid;
    std::memcpy(uuid.bytes.data(), raw.bytes, sizeof(raw.bytes));
    say(uuid.to_string());
    return result;
  }

  CUresult ipc_get() {
    CUipcMemHandle handle{};
    const CUresult result =
        cu_.cuIpcGetMemHandle(&handle, buffers_.at(next<std::size_t>()).address);
    std::string digits;
    for (const char byte : handle.reserved) {
      char two[3];
      std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned char>(byte));
      digits += two;
    }
    say(digits);
    return result;
  }
  CUresult ipc_open() {
    const auto digits = next<std::string>();
    CUipcMemHandle handle{};
    for (std::size_t i = 0; i < sizeof(handle.reserved); ++i) {
      handle.reserved[i] = static_cast<char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
    }
    Buffer buffer;
    const CUresult result = cu_.cuIpcOpenMemHandle_v2(&buffer.address, handle, 1);
    if (result == CUDA_SUCCESS) {
      cu_.cuMemGetAddressRange_v2(nullptr, &buffer.bytes, buffer.address);
    }
    return keep(result, buffer);
  }

  CUresult block() {
    return cu_.cuLaunchHostFunc(
        nullptr, [](void* blocker) { static_cast<Blocker*>(blocker)->wait(); }, &blocker_);
  }
  CUresult release() {
    blocker_.release();
    return CUDA_SUCCESS;
  }

  CUresult state() {
    CUprocessState state{};
    const CUresult result = cu_.cuCheckpointProcessGetState(next<int>(), &state);
    say(static_cast<int>(state));
    return result;
  }
  CUresult thread() {
    int thread = 0;
    const CUresult result = cu_.cuCheckpointProcessGetRestoreThreadId(next<int>(), &thread);
    say(thread);
    return result;
  }
  CUresult lock() {
    const int pid = next<int>();
    CUcheckpointLockArgs arguments{};
    arguments.timeoutMs = next<unsigned>();
    return cu_.cuCheckpointProcessLock(pid, &arguments);
  }
  CUresult checkpoint() { return cu_.cuCheckpointProcessCheckpoint(next<int>(), nullptr); }
  CUresult restore() {
    const int pid = next<int>();
    std::vector<CUcheckpointGpuPair> pairs;
    std::string from;
    std::string to;
    while (in_ >> from >> to) {
      CUcheckpointGpuPair pair{};
      std::memcpy(pair.oldUuid.bytes, Uuid::parse(from)->bytes.data(), 16);
      std::memcpy(pair.newUuid.bytes, Uuid::parse(to)->bytes.data(), 16);
      pairs.push_back(pair);
    }
    CUcheckpointRestoreArgs arguments{};
    arguments.gpuPairs = pairs.data();
    arguments.gpuPairsCount = static_cast<unsigned>(pairs.size());
    return cu_.cuCheckpointProcessRestore(pid, pairs.empty() ? nullptr : &arguments);
  }
  CUresult unlock() { return cu_.cuCheckpointProcessUnlock(next<int>(), nullptr); }

  Calls cu_;
  std::istringstream in_;
  std::ostringstream out_;
  std::vector<Buffer> buffers_;
  Blocker blocker_;
  const std::map<std::string, std::function<CUresult()>> commands_{
      {"context", [this] { return context(); }},
      {"alloc", [this] { return alloc(); }},
      {"managed", [this] { return managed(); }},
      {"pool", [this] { return pool(); }},
      {"variable", [this] { return variable(); }},
      {"free", [this] { return free(); }},
      {"vmm", [this] { return vmm(); }},
      {"detach", [this] { return detach(); }},
      {"export", [this] { return export_fd(); }},
      {"import", [this] { return import(); }},
      {"attach", [this] { return attach(); }},
      {"fill", [this] { return fill(); }},
      {"holds", [this] { return holds(); }},
      {"address", [this] { return address(); }},
      {"free_bytes", [this] { return free_bytes(); }},
      {"uuid", [this] { return uuid(); }},
      {"ipc_get", [this] { return ipc_get(); }},
      {"ipc_open", [this] { return ipc_open(); }},
      {"block", [this] { return block(); }},
      {"release", [this] { return release(); }},
      {"state", [this] { return state(); }},
      {"thread", [this] { return thread(); }},
      {"lock", [this] { return lock(); }},
      {"checkpoint", [this] { return checkpoint(); }},
      {"restore", [this] { return restore(); }},
      {"unlock", [this] { return unlock(); }},
  };
};

}  // namespace
}  // namespace gcr::softgpu::test

int main() {
  gcr::softgpu::test::Subject subject;
  std::cout << "ready" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) subject.run(line);
  return 0;
}
