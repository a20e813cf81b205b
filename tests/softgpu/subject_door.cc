// The checkpoint functions for GPUs whose interface has none: the door of the engine in another
// process, as CRIU's plugin uses it.
#include <cstring>

#include "tests/softgpu/engine/door.h"
#include "tests/softgpu/subject.h"

namespace gcr::softgpu::test {
namespace {

const DeviceTable& machine() {
  static DeviceTable& machine = *new DeviceTable;
  machine.vendor = Vendor::kAmd;
  if (machine.count == 0 && machine.load_from_environment()) std::abort();
  return machine;
}

CUresult ask(int pid, DoorRequest request, DoorReply* reply) {
  request.version = kDoorVersion;
  return static_cast<CUresult>(ask_door(machine(), pid, request, reply).code());
}

CUresult ask(int pid, DoorOp op, DoorReply* reply) {
  DoorRequest request{};
  request.op = op;
  return ask(pid, request, reply);
}

CUresult state(int pid, CUprocessState* state) {
  DoorReply reply{};
  const CUresult result = ask(pid, DoorOp::kState, &reply);
  *state = static_cast<CUprocessState>(reply.state);
  return result;
}

CUresult thread(int pid, int* number) {
  DoorReply reply{};
  const CUresult result = ask(pid, DoorOp::kState, &reply);
  *number = reply.thread;
  return result;
}

CUresult lock(int pid, CUcheckpointLockArgs* arguments) {
  DoorReply reply{};
  DoorRequest request{};
  request.op = DoorOp::kLock;
  request.timeout_ms = arguments->timeoutMs;
  return ask(pid, request, &reply);
}

CUresult checkpoint(int pid, CUcheckpointCheckpointArgs*) {
  DoorReply reply{};
  return ask(pid, DoorOp::kCheckpoint, &reply);
}

CUresult restore(int pid, CUcheckpointRestoreArgs* arguments) {
  DoorReply reply{};
  DoorRequest request{};
  request.op = DoorOp::kRestore;
  for (int i = 0; i < machine().count; ++i) {
    const Device& device = machine().devices[i];
    request.devices[request.device_count++] = {device.uuid, device.total_bytes,
                                               device.mounted ? 1U : 0U, 0};
  }
  const unsigned pairs = arguments != nullptr ? arguments->gpuPairsCount : 0;
  for (unsigned i = 0; i < pairs; ++i) {
    DoorPair& pair = request.pairs[request.pair_count++];
    std::memcpy(pair.from.bytes.data(), arguments->gpuPairs[i].oldUuid.bytes, 16);
    std::memcpy(pair.to.bytes.data(), arguments->gpuPairs[i].newUuid.bytes, 16);
  }
  return ask(pid, request, &reply);
}

CUresult unlock(int pid, CUcheckpointUnlockArgs*) {
  DoorReply reply{};
  return ask(pid, DoorOp::kUnlock, &reply);
}

}  // namespace

void use_door(Calls& calls) {
  calls.cuCheckpointProcessGetState = state;
  calls.cuCheckpointProcessGetRestoreThreadId = thread;
  calls.cuCheckpointProcessLock = lock;
  calls.cuCheckpointProcessCheckpoint = checkpoint;
  calls.cuCheckpointProcessRestore = restore;
  calls.cuCheckpointProcessUnlock = unlock;
}

}  // namespace gcr::softgpu::test
