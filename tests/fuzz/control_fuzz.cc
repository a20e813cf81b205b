// The control connection: its preface, the messages in it, and the agent's parsing of their texts,
// numbers and lists.
#include <google/protobuf/stubs/logging.h>

#include "migrate-agent/commit/journal/text.h"
#include "migrate-agent/gpu/mover/gpu_map.h"
#include "src/base/units.h"
#include "src/control/wire.h"
#include "tests/fuzz/input.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::control;

enum Kind : std::uint8_t { kPreface = 0, kStream = 1, kMessage = 2, kKinds = 3 };

void check_printable(const std::string& text) {
  for (const unsigned char c : text) require(c >= 0x20 && c != 0x7f, "texts are printable");
}

void take_endpoint(const std::string& text) {
  const auto endpoint = Endpoint::parse(text);
  if (!endpoint) return;
  const auto again = Endpoint::parse(endpoint->to_string());
  require(again && again->host == endpoint->host && again->port == endpoint->port,
          "an endpoint survives");
}

/// As the destination pairs the GPUs of the two hosts.
void take_gpus(const proto::PreflightRequest& request) {
  std::vector<mover::MappableGpu> theirs;
  for (const proto::Gpu& gpu : request.host().gpus()) {
    Uuid uuid;
    std::copy_n(gpu.uuid().begin(), std::min(gpu.uuid().size(), uuid.bytes.size()),
                uuid.bytes.begin());
    theirs.push_back({uuid, gpu.name(), gpu.total_bytes(), gpu.allowed()});
  }
  const std::vector<mover::MappableGpu> ours = {{Uuid{{1}}, "GPU", 80 * kGiB, true},
                                                {Uuid{{2}}, "GPU", 80 * kGiB, false}};
  const auto map = mover::map_gpus(theirs, ours);
  if (map) require(map->size() == theirs.size(), "every GPU of the source has its place");
}

void take_message(const proto::Envelope& message) {
  check_printable(from_failure(message.failure()).message());
  check_printable(printable(message.hello().software()));
  check_printable(printable(message.abort_request().reason()));
  for (const auto& member : message.preflight_request().members()) {
    check_printable(journal::short_command(member.command()));
  }
  take_endpoint(message.migrate_request().destination());
  take_endpoint(message.preflight_request().source_agent());
  take_gpus(message.preflight_request());
}

/// Bytes as ControlChannel reads them.
void take_stream(Input& input) {
  while (!input.empty()) {
    LengthBytes header{};
    for (std::uint8_t& byte : header) byte = input.number<std::uint8_t>();
    const auto length = decode_length(header, "the peer");
    if (!length) return;
    const std::string payload(input.text(*length));
    if (payload.size() < *length) return;
    const auto message = decode_message(payload, "the peer");
    if (!message) return;
    take_message(*message);
  }
}

void take(Input input) {
  static auto* const quiet = google::protobuf::SetLogHandler(nullptr);
  (void)quiet;
  switch (static_cast<Kind>(input.number<std::uint8_t>() % kKinds)) {
    case kPreface: {
      std::array<std::uint8_t, kPrefaceBytes> bytes{};
      for (std::uint8_t& byte : bytes) byte = input.number<std::uint8_t>();
      const auto preface = Preface::decode(bytes);
      if (preface) require(preface->encode() == bytes, "a preface means one thing");
      break;
    }
    case kStream:
      take_stream(input);
      break;
    default:
      if (auto message = decode_message(std::string(input.text(1 << 20)), "the peer")) {
        take_message(*message);
      }
  }
}

std::string stream(const proto::Envelope& message) {
  return Script().number(kStream).text(*encode_message(message));
}

proto::Envelope preflight() {
  proto::Envelope message;
  auto& request = *message.mutable_preflight_request();
  request.set_migration_id("0123456789abcdef");
  request.set_source_agent(":7411");
  request.add_members()->set_command("python3 train.py");
  auto& gpu = *request.mutable_host()->add_gpus();
  gpu.set_uuid("0123456789abcdef");
  gpu.set_name("GPU");
  gpu.set_total_bytes(1 << 20);
  gpu.set_allowed(true);
  request.add_buffers()->set_size_bytes(2 << 20);
  return message;
}

}  // namespace

std::vector<std::string> seeds() {
  proto::Envelope hello;
  hello.mutable_hello()->set_protocol_version(kProtocolVersion);
  hello.mutable_hello()->set_software("gcr-migrate");
  proto::Envelope migrate;
  migrate.mutable_migrate_request()->set_pid(4711);
  migrate.mutable_migrate_request()->set_destination("[fd00::1]:7411");
  proto::Envelope failure;
  *failure.mutable_failure() = to_failure(Error(Code::kRefused, "no\nthanks"));
  proto::Envelope restore;
  restore.mutable_restore_request()->add_files()->set_name("core-1.img");
  restore.mutable_restore_request()->add_digests()->set_digests(std::string(32, 'd'));
  return {Script().number(kPreface).bytes(Preface{ConnectionKind::kData, Uuid{{7}}}.encode()),
          stream(hello) + *encode_message(migrate), stream(failure), stream(preflight()),
          Script().number(kMessage).text(restore.SerializeAsString())};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
