// PrepareRequest, as the destination handles it: the transport, the digest key, and the buffers to
// make room for.
#include "migrate-agent/migration/destination/request_checks.h"
#include "migrate-agent/transfer/negotiation/negotiation.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/requests.h"

namespace gcr::fuzz {
namespace {

enum Consent : std::uint8_t { kUnencrypted = 1, kRdma = 2 };

void take_wish(const proto::PrepareRequest& request, std::uint8_t consent) {
  proto::DataOffer ours;
  ours.set_unencrypted((consent & kUnencrypted) != 0);
  if ((consent & kRdma) == 0) ours.set_no_rdma("none");
  ours.set_cores(8);
  const transfer::DataWish wish{request.transport(), request.plaintext(), request.lanes()};
  const auto plan = transfer::plan_data(wish, request.offer(), ours);
  if (!plan) return;
  require(plan->lanes >= 1 && plan->lanes <= transfer::kMaxLanes, "lanes are within their limit");
  require(plan->encrypted || (ours.unencrypted() && request.offer().unencrypted()),
          "both consent to data without TLS");
  require(plan->transport != proto::TRANSPORT_RDMA || ours.no_rdma().empty(), "RDMA needs devices");
  require(bool(transfer::check_decision(wish, request.offer(), plan->transport, plan->encrypted)),
          "the source agrees");
}

void take(Input input) {
  const auto consent = input.number<std::uint8_t>();
  proto::PrepareRequest request;
  if (!parse(input.rest(), request)) return;
  take_wish(request, consent);
  const auto key = migration::check_digest_key(request.digest_key());
  require(bool(key) == (request.digest_key().size() == 32), "a key has 32 bytes");
  gpu::Job job;
  const auto wanted = migration::add_buffers(request.buffers(), kGpuMap, job, kRoomBytes);
  if (wanted) check_added(*wanted, job);
}

}  // namespace

std::vector<std::string> seeds() {
  proto::PrepareRequest request;
  *request.add_buffers() = buffer(1, 2 * kChunkBytes);
  *request.add_buffers() = buffer(2, kChunkBytes);
  request.set_digest_key(std::string(32, 'k'));
  request.set_lanes(4);
  request.mutable_offer()->set_unencrypted(true);
  const std::string good = request.SerializeAsString();
  request.set_plaintext(true);
  request.set_transport(proto::TRANSPORT_TCP);
  *request.add_buffers() = buffer(2, kChunkBytes);
  return {Script().number<std::uint8_t>(kUnencrypted | kRdma).text(good),
          Script().number<std::uint8_t>(kUnencrypted).text(request.SerializeAsString())};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
