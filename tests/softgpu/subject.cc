#include "tests/softgpu/subject.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <thread>

#include "src/base/units.h"
#include "src/base/uuid.h"
#include "tests/apps/kernels_ptx.h"

namespace gcr::softgpu::test {
namespace {

std::string name_of(const Uuid& uuid, bool hip) { return hip ? to_bytes(uuid) : uuid.to_string(); }

Uuid gpu_of(const std::string& name) {
  const auto uuid = Uuid::parse(name);
  return uuid ? *uuid : to_uuid(name);
}

}  // namespace

Subject::Subject(const char* library) : cu(library) {
  if (cu.cuInit(0) != CUDA_SUCCESS) std::exit(2);
  if (cu.hip) use_door(cu);
}

void Subject::run(const std::string& line) {
  in = std::istringstream(line);
  out_.str("");
  std::string name;
  in >> name;
  const auto command = commands_.find(name);
  const CUresult result = command == commands_.end() ? CUDA_ERROR_UNKNOWN : command->second(*this);
  std::cout << result << out_.str() << std::endl;
}

CUresult Subject::keep(CUresult result, const Buffer& buffer) {
  if (result != CUDA_SUCCESS) return result;
  say(buffers.size());
  buffers.push_back(buffer);
  return result;
}

CUresult Subject::create(Buffer* buffer, CUmemLocation location, CUmemAllocationHandleType types) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = types;
  properties.location = location;
  return cu.cuMemCreate(&buffer->handle, buffer->bytes, &properties, 0);
}

CUresult Subject::import_from(const UniqueFd& file, Buffer* buffer) {
  return cu.cuMemImportFromShareableHandle(
      &buffer->handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(file.get())),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult Subject::map(Buffer* buffer, int device) {
  if (buffer->address == 0) {
    if (const CUresult result = cu.cuMemAddressReserve(&buffer->address, buffer->bytes, 0, 0, 0)) {
      return result;
    }
  }
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (const CUresult result = cu.cuMemMap(buffer->address, buffer->bytes, 0, buffer->handle, 0)) {
    return result;
  }
  return cu.cuMemSetAccess(buffer->address, buffer->bytes, &access, 1);
}

CUresult Subject::launch(const char* kernel, std::vector<std::uint64_t> arguments) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  if (const CUresult result = cu.cuModuleLoadData(&module, apps::kKernelsPtx)) return result;
  if (const CUresult result = cu.cuModuleGetFunction(&function, module, kernel)) return result;
  std::vector<void*> pointers;
  for (auto& argument : arguments) pointers.push_back(&argument);
  return cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, pointers.data(), nullptr);
}

UniqueFd fetch_descriptor(Subject& s) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, s.next<int>(), 0)));
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), s.next<int>(), 0)));
}

namespace {

CUresult context(Subject& s) {
  CUcontext context = nullptr;
  const CUresult result = s.cu.cuCtxCreate_v2(&context, 0, s.next<int>());
  s.say(s.contexts.size());
  s.contexts.push_back(context);
  return result;
}

CUresult alloc(Subject& s) {
  Buffer buffer;
  buffer.bytes = s.next<std::size_t>();
  return s.keep(s.cu.cuMemAlloc_v2(&buffer.address, buffer.bytes), buffer);
}

CUresult managed(Subject& s) {
  Buffer buffer;
  buffer.bytes = s.next<std::size_t>();
  return s.keep(s.cu.cuMemAllocManaged(&buffer.address, buffer.bytes, CU_MEM_ATTACH_GLOBAL),
                buffer);
}

CUresult pool(Subject& s) {
  Buffer buffer;
  buffer.bytes = s.next<std::size_t>();
  return s.keep(s.cu.cuMemAllocAsync(&buffer.address, buffer.bytes, nullptr), buffer);
}

CUresult variable(Subject& s) {
  CUmodule module = nullptr;
  Buffer buffer;
  if (const CUresult result = s.cu.cuModuleLoadData(&module, apps::kKernelsPtx)) return result;
  return s.keep(
      s.cu.cuModuleGetGlobal_v2(&buffer.address, &buffer.bytes, module, "gcr_counter_twin"),
      buffer);
}

CUresult free(Subject& s) { return s.cu.cuMemFree_v2(s.buffers.at(s.next<std::size_t>()).address); }

/// BYTES DEVICE
CUresult vmm(Subject& s) {
  Buffer buffer;
  buffer.bytes = s.next<std::size_t>();
  const int device = s.next<int>();
  if (const CUresult result = s.create(&buffer, {CU_MEM_LOCATION_TYPE_DEVICE, device})) {
    return result;
  }
  const CUresult result = s.map(&buffer, device);
  return s.keep(result, buffer);
}

CUresult detach(Subject& s) {
  Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  if (const CUresult result = s.cu.cuMemUnmap(buffer.address, buffer.bytes)) return result;
  return s.cu.cuMemRelease(buffer.handle);
}

CUresult export_fd(Subject& s) {
  int file = -1;
  const CUresult result =
      s.cu.cuMemExportToShareableHandle(&file, s.buffers.at(s.next<std::size_t>()).handle,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  s.say(file);
  return result;
}

/// BYTES PID DESCRIPTOR [DEVICE]
CUresult import(Subject& s) {
  Buffer buffer;
  buffer.bytes = s.next<std::size_t>();
  if (const CUresult result = s.import_from(fetch_descriptor(s), &buffer)) return result;
  const CUresult result = s.map(&buffer, s.next<int>());
  return s.keep(result, buffer);
}

/// BUFFER PID DESCRIPTOR [DEVICE]
CUresult attach(Subject& s) {
  Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  if (const CUresult result = s.import_from(fetch_descriptor(s), &buffer)) return result;
  return s.map(&buffer, s.next<int>());
}

CUresult fill(Subject& s) {
  const Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  return s.cu.cuMemsetD8_v2(buffer.address, static_cast<unsigned char>(s.next<int>()),
                            buffer.bytes);
}

CUresult holds(Subject& s) {
  const Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  const auto value = static_cast<char>(s.next<int>());
  std::string bytes(buffer.bytes, '\0');
  const CUresult result = s.cu.cuMemcpyDtoH_v2(bytes.data(), buffer.address, buffer.bytes);
  s.say(bytes == std::string(buffer.bytes, value));
  return result;
}

CUresult address(Subject& s) {
  s.say(s.buffers.at(s.next<std::size_t>()).address);
  return CUDA_SUCCESS;
}

CUresult free_bytes(Subject& s) {
  std::size_t free = 0;
  const CUresult result = s.cu.cuMemGetInfo_v2(&free, nullptr);
  s.say(free);
  return result;
}

CUresult uuid(Subject& s) {
  CUuuid raw{};
  const CUresult result = s.cu.cuDeviceGetUuid_v2(&raw, s.next<int>());
  Uuid uuid;
  std::memcpy(uuid.bytes.data(), raw.bytes, sizeof(raw.bytes));
  s.say(name_of(uuid, s.cu.hip));
  return result;
}

CUresult block(Subject& s) {
  return s.cu.cuLaunchHostFunc(
      nullptr, [](void* blocker) { static_cast<Blocker*>(blocker)->wait(); }, &s.blocker);
}

CUresult release(Subject& s) {
  s.blocker.release();
  return CUDA_SUCCESS;
}

/// MILLISECONDS: GPU work that takes this long.
CUresult busy(Subject& s) {
  return s.cu.cuLaunchHostFunc(
      nullptr,
      [](void* milliseconds) {
        std::this_thread::sleep_for(
            std::chrono::milliseconds(reinterpret_cast<std::intptr_t>(milliseconds)));
      },
      reinterpret_cast<void*>(s.next<std::intptr_t>()));
}

CUresult state(Subject& s) {
  CUprocessState state{};
  const CUresult result = s.cu.cuCheckpointProcessGetState(s.next<int>(), &state);
  s.say(static_cast<int>(state));
  return result;
}

CUresult thread(Subject& s) {
  int thread = 0;
  const CUresult result = s.cu.cuCheckpointProcessGetRestoreThreadId(s.next<int>(), &thread);
  s.say(thread);
  return result;
}

CUresult lock(Subject& s) {
  const int pid = s.next<int>();
  CUcheckpointLockArgs arguments{};
  arguments.timeoutMs = s.next<unsigned>();
  return s.cu.cuCheckpointProcessLock(pid, &arguments);
}

CUresult checkpoint(Subject& s) {
  return s.cu.cuCheckpointProcessCheckpoint(s.next<int>(), nullptr);
}

CUresult restore(Subject& s) {
  const int pid = s.next<int>();
  std::vector<CUcheckpointGpuPair> pairs;
  std::string from;
  std::string to;
  while (s.in >> from >> to) {
    CUcheckpointGpuPair pair{};
    std::memcpy(pair.oldUuid.bytes, gpu_of(from).bytes.data(), 16);
    std::memcpy(pair.newUuid.bytes, gpu_of(to).bytes.data(), 16);
    pairs.push_back(pair);
  }
  CUcheckpointRestoreArgs arguments{};
  arguments.gpuPairs = pairs.data();
  arguments.gpuPairsCount = static_cast<unsigned>(pairs.size());
  return s.cu.cuCheckpointProcessRestore(pid, pairs.empty() ? nullptr : &arguments);
}

CUresult unlock(Subject& s) { return s.cu.cuCheckpointProcessUnlock(s.next<int>(), nullptr); }

const Subject::Commands kCommands{
    {"context", context}, {"alloc", alloc},           {"managed", managed},
    {"pool", pool},       {"variable", variable},     {"free", free},
    {"vmm", vmm},         {"detach", detach},         {"export", export_fd},
    {"import", import},   {"attach", attach},         {"fill", fill},
    {"holds", holds},     {"address", address},       {"free_bytes", free_bytes},
    {"uuid", uuid},       {"block", block},           {"release", release},
    {"busy", busy},       {"state", state},           {"thread", thread},
    {"lock", lock},       {"checkpoint", checkpoint}, {"restore", restore},
    {"unlock", unlock},
};

}  // namespace
}  // namespace gcr::softgpu::test

int main(int count, char** arguments) {
  gcr::softgpu::test::Subject subject(count > 1 ? arguments[1] : SOFTGPU_LIBRARY);
  subject.add(gcr::softgpu::test::kCommands);
  gcr::softgpu::test::add_sharing_commands(subject);
  std::cout << "ready" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) subject.run(line);
  return 0;
}
