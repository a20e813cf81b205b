// The checkpoint functions: requests to the library inside another process (door.h). They do not
// use this process's own gate, so that a process can be locked while it controls others.
#include <cstring>

#include "tests/softgpu/cuda/face.h"
#include "tests/softgpu/cuda/refusals.h"

namespace gcr::softgpu {
namespace {

CUresult ask(int pid, const DoorRequest& request, DoorReply* reply) {
  Process& process = Process::get();
  if (!process.ready || process.forked) return CUDA_ERROR_NOT_INITIALIZED;
  try {
    return ask_door(process.devices, pid, request, reply);
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

DoorRequest request_for(DoorOp op) {
  DoorRequest request{};
  request.version = kDoorVersion;
  request.op = op;
  return request;
}

CUresult simple(int pid, DoorOp op) {
  DoorReply reply{};
  return ask(pid, request_for(op), &reply);
}

Uuid from_abi(const CUuuid& uuid) {
  Uuid result;
  std::memcpy(result.bytes.data(), uuid.bytes, sizeof(uuid.bytes));
  return result;
}

}  // namespace

SOFTGPU_API cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  DoorReply reply{};
  const CUresult result = ask(pid, request_for(DoorOp::kState), &reply);
  if (result == CUDA_SUCCESS) *state = static_cast<CUprocessState>(reply.state);
  return result;
}

SOFTGPU_API cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  if (tid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  DoorReply reply{};
  const CUresult result = ask(pid, request_for(DoorOp::kState), &reply);
  if (result == CUDA_SUCCESS) *tid = reply.thread;
  return result;
}

SOFTGPU_API cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  DoorRequest request = request_for(DoorOp::kLock);
  if (args != nullptr) request.timeout_ms = args->timeoutMs;
  if (const CUresult refused = refusal_of("lock")) return refused;
  DoorReply reply{};
  return ask(pid, request, &reply);
}

SOFTGPU_API cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs*) {
  if (const CUresult refused = refusal_of("checkpoint")) return refused;
  return simple(pid, DoorOp::kCheckpoint);
}

SOFTGPU_API cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  if (const CUresult refused = refusal_of("restore")) return refused;
  const DeviceTable& machine = Process::get().devices;
  DoorRequest request = request_for(DoorOp::kRestore);
  request.device_count = static_cast<std::uint32_t>(machine.count);
  for (int i = 0; i < machine.count; ++i) {
    const Device& device = machine.devices[i];
    request.devices[i] = {device.uuid, device.total_bytes, device.mounted ? 1U : 0U, 0};
  }
  if (args != nullptr && args->gpuPairs != nullptr) {
    if (args->gpuPairsCount > kMaxDevices) return CUDA_ERROR_INVALID_VALUE;
    request.pair_count = args->gpuPairsCount;
    for (unsigned i = 0; i < args->gpuPairsCount; ++i) {
      request.pairs[i] = {from_abi(args->gpuPairs[i].oldUuid), from_abi(args->gpuPairs[i].newUuid)};
    }
  }
  DoorReply reply{};
  return ask(pid, request, &reply);
}

SOFTGPU_API cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs*) {
  if (const CUresult refused = refusal_of("unlock")) return refused;
  return simple(pid, DoorOp::kUnlock);
}

}  // namespace gcr::softgpu
