// Connects the lanes of a sender.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "transport/lane_thread.h"
#include "transport/rdma/sender.h"

namespace gcr::transport {
namespace rdma {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kResolveMs = 200;
constexpr int kRefusedByApplication = 28;  // InfiniBand, 12.6.7.2: "consumer reject"

/// Decodes the receiver's answer, which comes with an acceptance or rejection.
Result<std::optional<Error>> answer_in(const rdma_cm_event& event) {
  const auto& data = event.param.conn;
  return decode_answer(
      std::as_bytes(std::span(static_cast<const char*>(data.private_data), data.private_data_len)));
}

/// Converts a failed connection to an error, with the receiver's reason if it sent one.
Error refusal(const rdma_cm_event& event) {
  if (event.event != RDMA_CM_EVENT_REJECTED) {
    const bool unheard = event.event == RDMA_CM_EVENT_ADDR_ERROR && event.status == -ETIMEDOUT;
    return Error(unheard ? Code::kTimeout : Code::kUnavailable,
                 fmt::format("{} ({})", rdma_event_str(event.event), std::strerror(-event.status)));
  }
  if (event.status != kRefusedByApplication || event.param.conn.private_data == nullptr) {
    return Error(Code::kUnavailable, "no RDMA receiver listens at this address");
  }
  const auto answer = answer_in(event);
  if (!answer) return answer.error();
  if (*answer) return (*answer)->while_doing("the receiver reports");
  return Error(Code::kProtocol, "the receiver refused the connection without a reason");
}

/// Succeeds if `event` is the `wanted` one.
Status check(const rdma_cm_event& event, rdma_cm_event_type wanted) {
  if (event.event != wanted) return refusal(event);
  if (wanted != RDMA_CM_EVENT_ESTABLISHED) return {};
  GCR_ASSIGN(const auto refused, answer_in(event));
  if (!refused) return {};
  return Error(Code::kProtocol, "the receiver accepted the connection and sent an error with it");
}

}  // namespace

Status RdmaSender::prepare() {
  if (options_.lanes == 0 || options_.lanes > kMaxLanes || options_.depth == 0 ||
      options_.depth > kMaxDepth || options_.token.size() > kMaxRdmaTokenBytes ||
      options_.piece_bytes == 0 || options_.piece_bytes > kPlaceBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("an RDMA channel has 1 to {} lanes of depth 1 to {}, pieces of 1 byte "
                             "to 2 MiB, and a token of at most {} bytes",
                             kMaxLanes, kMaxDepth, kMaxRdmaTokenBytes));
  }
  GCR_TRY(check_rdma_available());
  GCR_ASSIGN(events_, make_event_channel());
  return {};
}

/// Waits for the event `wanted` of `id`; any other event of `id`, or of an earlier lane, is an
/// error.
Status RdmaSender::expect(const rdma_cm_id* id, rdma_cm_event_type wanted) {
  for (;;) {
    GCR_ASSIGN(const ConnectionEvent event, next_event(events_.get()));
    if (event && event->id == id) return check(*event, wanted);
    if (event) return Error(Code::kUnavailable, "the receiver closed an earlier connection");
    pollfd wait{.fd = events_->fd, .events = POLLIN, .revents = 0};
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - steady_clock::now());
    GCR_ASSIGN(const bool ready, wait_ready(std::span(&wait, 1), left));
    if (!ready) {
      return Error(Code::kUnavailable, fmt::format("no {} within {} ms", rdma_event_str(wanted),
                                                   options_.connect_timeout.count()));
    }
  }
}

/// Finds the device from which `address` is reached.
Status RdmaSender::find_device(rdma_cm_id* id, const Address& address) {
  GCR_ASSIGN(auto target, resolve(address));
  for (;;) {
    // Short attempts: if the answer arrives before the kernel waits for it, the kernel notices it
    // only when the attempt times out.
    if (rdma_resolve_addr(id, nullptr, target.front().get(), kResolveMs) != 0) {
      return verbs_error("find a device for the address");
    }
    auto found = expect(id, RDMA_CM_EVENT_ADDR_RESOLVED);
    if (found) return {};
    if (found.error().code() != Code::kTimeout) return found;
    if (steady_clock::now() >= deadline_) return Error(Code::kUnavailable, found.error().message());
  }
}

Status RdmaSender::find_route(rdma_cm_id* id) {
  GCR_TRY(set_peer_timeout(id, options_.peer_timeout));
  const auto timeout = static_cast<int>(options_.connect_timeout.count());
  if (rdma_resolve_route(id, timeout) != 0) return verbs_error("find a route to the address");
  return expect(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

Status RdmaSender::connect_lane(const Address& address, unsigned lane) {
  deadline_ = steady_clock::now() + options_.connect_timeout;
  GCR_ASSIGN(ConnectionId id, make_id(events_.get()));
  GCR_TRY(find_device(id.get(), address));
  GCR_TRY(find_route(id.get()));
  GCR_ASSIGN(ibv_pd* const domain, domains_.add(id->verbs));
  GCR_ASSIGN(auto queue_pair, QueuePair::make(std::move(id), domain, options_.depth));
  const auto hello = encode(Hello{.lane = static_cast<std::uint16_t>(lane),
                                  .lanes = static_cast<std::uint16_t>(options_.lanes),
                                  .depth = static_cast<std::uint16_t>(options_.depth),
                                  .token = options_.token});
  rdma_conn_param parameters = connection_parameters(hello);
  if (rdma_connect(queue_pair->id(), &parameters) != 0) return verbs_error("ask for a connection");
  GCR_TRY(expect(queue_pair->id(), RDMA_CM_EVENT_ESTABLISHED));
  lanes_.push_back(std::make_unique<SenderLane>(std::move(queue_pair), domain, options_.depth,
                                                options_.piece_bytes));
  return {};
}

}  // namespace rdma

Result<std::unique_ptr<Channel>> connect_rdma(const std::vector<Address>& addresses,
                                              const RdmaOptions& options) {
  std::vector<Address> reachable = addresses;
  if (reachable.empty()) return Error(Code::kInvalidArgument, "no address to connect to");
  auto sender = std::make_unique<rdma::RdmaSender>(options);
  GCR_TRY(sender->prepare());
  for (unsigned lane = 0; lane < options.lanes;) {
    const auto at = reachable.begin() + lane % static_cast<std::ptrdiff_t>(reachable.size());
    if (auto connected = sender->connect_lane(*at, lane); connected) {
      ++lane;
    } else if (connected.error().code() == Code::kUnavailable && reachable.size() > 1) {
      reachable.erase(at);
    } else {
      return connected.error().while_doing("RDMA connection to " + describe(*at));
    }
  }
  GCR_TRY(sender->start("RDMA connection to " + describe(reachable.front())));
  return sender;
}

}  // namespace gcr::transport
