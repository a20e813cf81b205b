// The preload library at its door: any requests of an agent, in any order, with any descriptors.
// The library is the real one from the door inwards, with two runtimes; their driver calls succeed,
// or fail where the input says so.
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <memory>

#include "preload/door.h"
#include "preload/door_protocol.h"
#include "preload/gate.h"
#include "preload/memory/runtime.h"
#include "preload/runtime.h"
#include "src/base/unique_fd.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/send_packet.h"

namespace gcr::preload {

// Replaces the library's own thread.
std::int32_t door_thread_id() { return 1; }
bool start_door() { return true; }

namespace {

/// How many further driver calls succeed.
int g_calls_that_succeed = 0;

Result one_call() { return g_calls_that_succeed-- > 0 ? Result::kSuccess : Result::kInvalidValue; }

class FakeDriver final : public Driver {
 public:
  Result create(Handle*, std::size_t, int, bool) override { return one_call(); }
  bool can_create_on_host() override { return false; }
  Result create_on_host(Handle*, std::size_t, int, int*) override { return Result::kNotSupported; }
  Result create_as(Handle*, std::size_t, const Asked&, unsigned long long) override {
    return one_call();
  }
  Result release(Handle) override { return one_call(); }
  Result export_descriptor(int* fd, Handle) override {
    const Result result = one_call();
    if (result == Result::kSuccess) *fd = ::eventfd(0, EFD_CLOEXEC);
    return result;
  }
  Result import_descriptor(Handle* handle, int) override {
    const Result result = one_call();
    if (result == Result::kSuccess) *handle = 7;
    return result;
  }
  Result properties_of(Handle, Asked*) override { return one_call(); }
  Result reserve(Address*, std::size_t, std::size_t) override { return one_call(); }
  Result free_addresses(Address, std::size_t) override { return one_call(); }
  Result map(Address, std::size_t, std::size_t, Handle) override { return one_call(); }
  Result unmap(Address, std::size_t) override { return one_call(); }
  Result set_access(Address, std::size_t, std::span<const Access>) override { return one_call(); }
  DeviceFacts facts(int) override { return {}; }
  DeviceUuid uuid(int) override { return {}; }
  Result smallest_pitch(std::size_t*) override { return one_call(); }
  Result free_memory(std::size_t*) override { return one_call(); }
  Result graph_memory(int, std::uint64_t*) override { return one_call(); }
  Result current(Context**) override { return Result::kInvalidContext; }
  Result current_device(int*) override { return Result::kInvalidContext; }
  Result enter(Context*, Context**) override { return Result::kInvalidContext; }
  void leave(Context*) override {}
  Result synchronize() override { return one_call(); }
  bool is_managed(Address) override { return false; }
  bool primary_is_active(int) override { return true; }
  Result stack_limit(std::size_t*) override { return Result::kNotSupported; }
  Result set_stack_limit(std::size_t) override { return Result::kNotSupported; }
  Result settle_stack_limit() override { return Result::kSuccess; }
  Result stream_number(Stream*, std::uint64_t*) override { return one_call(); }
  Result stream_context(Stream*, Context**, int*) override { return one_call(); }
  Result is_capturing(Stream*, bool*) override { return one_call(); }
  Result exchange_capture_mode(int*) override { return one_call(); }
  Result create_event(Event**) override { return one_call(); }
  void destroy_event(Event*) override {}
  Result record(Event*, Stream*) override { return one_call(); }
  Result query(Event*) override { return one_call(); }
  Result wait_for(Stream*, Event*) override { return one_call(); }
  Result copy(Address, Address, std::size_t) override { return one_call(); }
  Result current_pool(int, PoolHandle**) override { return one_call(); }
  Result default_pool(int, PoolHandle**) override { return one_call(); }
  PoolBehaviour behaviour_of(PoolHandle*) override { return {}; }
  void pass_all_calls() override {}
  std::span<const std::string_view> files() override { return {}; }
};

FakeDriver g_driver;
Runtime g_runtimes[kMaxRuntimes] = {{g_driver, 0}, {g_driver, 1}};

}  // namespace
}  // namespace gcr::preload

namespace gcr::fuzz {
namespace {

using namespace gcr::preload;

constexpr std::uint64_t kChunk = 2 << 20;

/// The agent's message: a request of the right size and version, or bytes.
enum Step : std::uint8_t { kBytes = 0, kRequest = 1, kSteps = 2 };

void close_all_descriptors() {
  for (Runtime& r : g_runtimes) {
    for (auto& [id, physical] : r.inventory.physicals()) close_descriptors(physical);
  }
  runtime::close_loose();
}

/// Of the first runtime 1, 2, 3; of the second 129, 130, 131.
std::uint64_t id_of(std::uint8_t number) {
  return number < 128 ? number : (std::uint64_t{1} << 39) + number - 128;
}

/// Three allocations in each runtime, as after a start of the application.
void make_state() {
  close_all_descriptors();
  for (Runtime& r : g_runtimes) {
    std::destroy_at(&r.inventory);
    std::construct_at(&r.inventory, r.number);
    r.detached = false;
    r.registered_memory = {{4096, 1}, {(1 << 20) + r.number, 4096}};
    for (std::uint64_t i = 1; i <= 3; ++i) {
      Physical& physical = r.inventory.add_physical(i, i * kChunk, 0, Origin::kLibrary);
      Mapping& mapping = r.inventory.add_mapping((i + 4 * r.number) << 32, i * kChunk, 0, physical);
      mapping.readers = mapping.writers = 1;
    }
    start(r);
  }
  gate::open();
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
    request.ids[i] = id_of(input.number<std::uint8_t>());
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
  agent.reset();  // the other end is closed: its requests are answered, then the door is gone
  serve_door(library.get());
}

void check_state() {
  require(g_runtimes[0].detached == g_runtimes[1].detached, "both runtimes or none is away");
  for (Runtime& r : g_runtimes) {
    require(r.inventory.physicals().size() == 3 && r.inventory.mappings().size() == 3,
            "nothing is forgotten");
    require(gate::is_closed() == r.detached || !gate::is_closed(),
            "without an agent the gate opens, unless the memory is away");
    if (r.detached) require(gate::is_closed(), "memory that is away is behind a closed gate");
  }
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
  const std::string all = "\1\2\3\x81\x82\x83";
  const std::string up_to_detach = request(Op::kHello, "") + request(Op::kInventory, "") +
                                   request(Op::kExport, all) + request(Op::kCloseGate, "") +
                                   request(Op::kDetach, "");
  return {
      "\xff" + up_to_detach + request(Op::kOffer, all, 6) + request(Op::kAttach, "") +
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
