// The preload library at its door: whatever an agent asks, in any order, with any descriptors. The
// library is the real one from the door inwards; its driver is a few functions that succeed, or
// fail when the input says so.
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <memory>

#include "preload/cuda/process_state.h"
#include "preload/cuda/real_driver.h"
#include "preload/door.h"
#include "preload/door_protocol.h"
#include "preload/gate.h"
#include "preload/runtime.h"
#include "src/base/unique_fd.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/send_packet.h"

namespace gcr::preload {

// In place of the library's own thread and of the loader's search for a driver.
std::int32_t door_thread_id() { return 1; }

namespace {

/// How many more calls of the driver succeed.
int g_calls_that_succeed = 0;

CUresult one_call() { return g_calls_that_succeed-- > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult fake_map(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
                  unsigned long long) {
  return one_call();
}
CUresult fake_unmap(CUdeviceptr, std::size_t) { return one_call(); }
CUresult fake_set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
  return one_call();
}
CUresult fake_release(CUmemGenericAllocationHandle) { return one_call(); }
CUresult fake_export(void* to, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                     unsigned long long) {
  const CUresult result = one_call();
  if (result == CUDA_SUCCESS) *static_cast<int*>(to) = ::eventfd(0, EFD_CLOEXEC);
  return result;
}
CUresult fake_import(CUmemGenericAllocationHandle* handle, void*, CUmemAllocationHandleType) {
  const CUresult result = one_call();
  if (result == CUDA_SUCCESS) *handle = 7;
  return result;
}

}  // namespace

namespace real_driver_internal {

std::atomic<const RealDriver*> g_driver = nullptr;
std::atomic<bool> g_left_to_driver = false;

const RealDriver* find() {
  static const RealDriver driver = [] {
    RealDriver made;
    made.cuMemMap = fake_map;
    made.cuMemUnmap = fake_unmap;
    made.cuMemSetAccess = fake_set_access;
    made.cuMemRelease = fake_release;
    made.cuMemExportToShareableHandle = fake_export;
    made.cuMemImportFromShareableHandle = fake_import;
    return made;
  }();
  g_driver = &driver;
  return &driver;
}

}  // namespace real_driver_internal
}  // namespace gcr::preload

namespace gcr::fuzz {
namespace {

using namespace gcr::preload;

constexpr std::uint64_t kChunk = 2 << 20;

/// What the agent sends: a request of the right size and version, or bytes.
enum Step : std::uint8_t { kBytes = 0, kRequest = 1, kSteps = 2 };

void close_all_descriptors() {
  for (auto& [id, physical] : state().inventory.physicals()) close_descriptors(physical);
  runtime::close_loose();
}

/// Three allocations, as after a start of the application.
void make_state() {
  close_all_descriptors();
  ProcessState& s = state();
  std::destroy_at(&s.inventory);
  std::construct_at(&s.inventory);
  s.detached = false;
  s.registered_memory = {{4096, 1}, {1 << 20, 4096}};
  gate::open();
  for (std::uint64_t i = 1; i <= 3; ++i) {
    Physical& physical = s.inventory.add_physical(i, i * kChunk, 0, Origin::kLibrary);
    Mapping& mapping = s.inventory.add_mapping(i << 32, i * kChunk, 0, physical);
    mapping.readers = mapping.writers = 1;
  }
}

door::DoorRequest request_of(Input& input) {
  door::DoorRequest request{};
  request.version = door::kVersion;
  request.op = static_cast<door::Op>(input.number<std::uint8_t>());
  request.timeout_us = input.number<std::uint8_t>() % 4 * 1000;
  request.lease_ms = input.number<std::uint8_t>() % 4;
  request.count = input.number<std::uint8_t>();
  request.session = input.number<std::uint8_t>();
  for (std::uint32_t i = 0; i < std::min(request.count, door::kMaxEntries); ++i) {
    request.ids[i] = input.number<std::uint8_t>();
  }
  return request;
}

std::ptrdiff_t descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

void converse(Input input) {
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "a door");
  const UniqueFd library(ends[0]);
  UniqueFd agent(ends[1]);
  g_calls_that_succeed = input.number<std::uint8_t>();
  while (!input.empty()) {
    const auto step = input.number<std::uint8_t>() % kSteps;
    const std::size_t count = input.number<std::uint8_t>() % (door::kMaxEntries + 1);
    if (step == kRequest) {
      const door::DoorRequest request = request_of(input);
      send_packet(agent.get(), std::as_bytes(std::span(&request, 1)), count);
    } else {
      send_packet(agent.get(), input.bytes(input.number<std::uint16_t>()), count);
    }
  }
  agent
      .reset();  // nobody is left at the other end: what it sent is answered, then the door is gone
  serve_door(library.get());
}

void check_state() {
  ProcessState& s = state();
  require(s.inventory.physicals().size() == 3 && s.inventory.mappings().size() == 3,
          "nothing is forgotten");
  require(gate::is_closed() == s.detached || !gate::is_closed(),
          "without an agent the gate opens, unless the memory is away");
  if (s.detached) require(gate::is_closed(), "memory that is away is behind a closed gate");
}

void take(Input input) {
  make_state();
  send_packet(-1, {}, 0);
  const std::ptrdiff_t before = descriptors();
  converse(input);
  check_state();
  close_all_descriptors();
  require(descriptors() == before, "every descriptor has an owner");
}

std::string request(door::Op op, std::string_view ids, int descriptors = 0, int session = 1) {
  return Script()
      .number(kRequest)
      .number(static_cast<std::uint8_t>(descriptors))
      .number(static_cast<std::uint8_t>(op))
      .number<std::uint8_t>(1)
      .number<std::uint8_t>(0)
      .number(static_cast<std::uint8_t>(ids.size()))
      .number(static_cast<std::uint8_t>(session))
      .text(ids);
}

}  // namespace

std::vector<std::string> seeds() {
  using door::Op;
  const std::string all = "\1\2\3";
  const std::string up_to_detach = request(Op::kHello, "") + request(Op::kInventory, "") +
                                   request(Op::kExport, all) + request(Op::kCloseGate, "") +
                                   request(Op::kDetach, "");
  return {
      "\xff" + up_to_detach + request(Op::kOffer, all, 3) + request(Op::kAttach, "") +
          request(Op::kOpenGate, ""),
      "\x05" + up_to_detach + request(Op::kOffer, "\1", 2),
      "\xff" + request(Op::kWatchMemory, "") + request(Op::kRegisteredMemory, "\1") +
          request(Op::kRegisteredMemory, ""),
      "\xff" + request(Op::kDropPages, "\1\1") + request(Op::kUseHugePages, "\1") +
          std::string(Script().number(kBytes).number<std::uint8_t>(2).number<std::uint16_t>(0))};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
