// Packets between a worker and its daemon, and between two workers, with descriptors; and the
// daemon's registry of owners.
#include <google/protobuf/stubs/logging.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>

#include "migrate-agent/daemon/listener/registry.h"
#include "migrate-agent/worker/runtime/packet.h"
#include "proto/registry.pb.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/send_packet.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::daemon;

void take_message(daemon::Registry& registry, daemon::WorkerId worker, const std::string& bytes) {
  registry::FromWorker from_worker;
  if (from_worker.ParseFromString(bytes)) {
    const auto& claim = from_worker.claim_processes();
    (void)registry.claim_processes(worker, to_uuid(claim.migration_id()), claim.processes());
    const Uuid migration = to_uuid(from_worker.register_migration().migration_id());
    const Status taken = registry.register_migration(worker, migration);
    if (taken) require(registry.owner_of(migration) == worker, "who registers owns");
  }
  (void)registry::FromDaemon().ParseFromString(bytes);
  (void)registry::ToWorker().ParseFromString(bytes);
  (void)registry::WorkerReply().ParseFromString(bytes);
}

std::ptrdiff_t descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

void take(Input input) {
  static auto* const quiet = google::protobuf::SetLogHandler(nullptr);
  (void)quiet;
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "a pair");
  const UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  send_packet(ours.get(), std::as_bytes(std::span("first")), 0);  // makes what is made once
  (void)worker::receive_packet(theirs.get());
  const std::ptrdiff_t before = descriptors();
  daemon::Registry registry;
  while (!input.empty()) {
    const auto count = input.number<std::uint8_t>() % 5;
    const auto worker = input.number<std::uint8_t>() % 3;
    send_packet(ours.get(), input.bytes(input.number<std::uint8_t>()), count);
    const auto packet = worker::receive_packet(theirs.get());
    if (!packet || !*packet) continue;
    require(((*packet)->fd.get() >= 0) == (count > 0), "one descriptor of those that came");
    take_message(registry, static_cast<daemon::WorkerId>(worker), (*packet)->bytes);
    if (worker == 2) registry.release(static_cast<daemon::WorkerId>(worker));
  }
  require(descriptors() == before, "no descriptor stays");
}

std::string packet(int descriptors, int worker, const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  return Script()
      .number(static_cast<std::uint8_t>(descriptors))
      .number(static_cast<std::uint8_t>(worker))
      .number(static_cast<std::uint8_t>(bytes.size()))
      .text(bytes);
}

}  // namespace

std::vector<std::string> seeds() {
  registry::FromWorker claim;
  claim.set_sequence(1);
  claim.mutable_claim_processes()->set_migration_id("0123456789abcdef");
  for (const int pid : {4711, 4712}) {
    auto& process = *claim.mutable_claim_processes()->add_processes();
    process.set_pid(pid);
    process.set_start_time(99);
  }
  registry::FromWorker registration;
  registration.mutable_register_migration()->set_migration_id("0123456789abcdef");
  registry::FromDaemon connection;
  connection.mutable_data_connection();
  registry::ToWorker decide;
  decide.mutable_decide()->set_by("an operator");
  decide.mutable_decide()->set_decision(registry::Decide::RUN_HERE);
  return {packet(0, 0, claim) + packet(0, 1, claim) + packet(0, 0, registration),
          packet(1, 0, connection) + packet(3, 2, decide)};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
