#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "transport/rdma/address.h"
#include "transport/rdma/lane_thread.h"
#include "transport/rdma/receiver_lane.h"
#include "transport/rdma/regions.h"

namespace gcr::transport {

using namespace rdma;  // NOLINT: this file is a part of it

namespace {

constexpr int kBacklog = 16;

}  // namespace

class RdmaReceiver::Impl {
 public:
  explicit Impl(RdmaReceiverOptions options) : options_(std::move(options)) {}
  ~Impl();

  Status start();
  const std::vector<RdmaAddress>& addresses() const { return options_.addresses; }
  unsigned lanes() const;
  void cancel();
  Status health() const;
  Statistics statistics() const;
  Regions& regions() { return regions_; }

 private:
  /// One accepted connection. `lane` belongs to the thread; its queue pair may be closed by others.
  struct Lane {
    std::unique_ptr<ReceiverLane> lane;
    std::thread thread;
    std::atomic<bool> established = false;  ///< the sender knows that it was accepted
    bool over = false;                      ///< the thread is done; guarded by mutex_
  };

  Status listen(RdmaAddress& address);
  void run();
  Status wait() const;
  Status take_events();
  void take_request(ConnectionId id, const std::vector<std::byte>& private_data);
  Status accept(ConnectionId& id, const std::vector<std::byte>& private_data);
  Status check_room() const;
  void take_end(const rdma_cm_id* id, rdma_cm_event_type what);
  void serve(Lane& lane);
  Result<Message> answer(const Message& request, const ibv_pd* domain);
  void collect_ended();
  std::optional<Error> broken() const;
  void break_with(const Error& error);

  RdmaReceiverOptions options_;
  Regions regions_;
  EventChannel events_;
  std::vector<ConnectionId> listeners_;
  UniqueFd wake_;  ///< a lane is over, or stop_ is set
  std::atomic<bool> stop_ = false;
  std::atomic<bool> cancelled_ = false;
  std::atomic<std::uint64_t> payload_bytes_ = 0;
  std::atomic<std::uint64_t> writes_ = 0;

  mutable std::mutex mutex_;
  std::list<Lane> lanes_;             ///< guarded by mutex_; changed by the thread only
  std::optional<Error> first_error_;  ///< guarded by mutex_
  std::thread thread_;
};

RdmaReceiver::Impl::~Impl() {
  cancel();
  stop_ = true;
  wake_up(wake_);
  if (thread_.joinable()) thread_.join();
  for (Lane& lane : lanes_) lane.thread.join();
}

Status RdmaReceiver::Impl::start() {
  if (options_.addresses.empty() || options_.token.size() > kMaxRdmaTokenBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("an RDMA receiver has an address, and a token of at most {} bytes",
                             kMaxRdmaTokenBytes));
  }
  GCR_TRY(check_rdma_is_there());
  GCR_ASSIGN(events_, make_event_channel());
  GCR_ASSIGN(wake_, make_wake());
  for (RdmaAddress& address : options_.addresses) {
    if (auto listening = listen(address); !listening) {
      return listening.error().while_doing("cannot listen on " + describe(address));
    }
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

Status RdmaReceiver::Impl::listen(RdmaAddress& address) {
  GCR_ASSIGN(sockaddr_storage local, resolve(address));
  GCR_ASSIGN(ConnectionId id, make_id(events_.get()));
  if (rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&local)) != 0) {
    return verbs_error("bind the address");
  }
  if (id->verbs == nullptr) {
    return Error(Code::kInvalidArgument, "the address is not that of one RDMA device");
  }
  GCR_TRY(regions_.add_device(id->verbs));
  if (rdma_listen(id.get(), kBacklog) != 0) return verbs_error("listen");
  address.port = ntohs(rdma_get_src_port(id.get()));
  listeners_.push_back(std::move(id));
  return {};
}

void RdmaReceiver::Impl::run() {
  become_lane_thread();
  while (!stop_) {
    auto looked = wait();
    if (looked) looked = take_events();
    if (!looked) return break_with(looked.error());
    collect_ended();
  }
}

Status RdmaReceiver::Impl::wait() const {
  std::array<pollfd, 2> waits{pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                              pollfd{.fd = events_->fd, .events = POLLIN, .revents = 0}};
  if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) {
    return Error::from_errno(errno, "cannot wait for RDMA connections");
  }
  calm_down(wake_);
  return {};
}

Status RdmaReceiver::Impl::take_events() {
  for (;;) {
    GCR_ASSIGN(ConnectionEvent event, next_event(events_.get()));
    if (!event) return {};
    rdma_cm_id* const id = event->id;
    const rdma_cm_event_type what = event->event;
    std::vector<std::byte> private_data;
    if (what == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.conn.private_data != nullptr) {
      const auto* const data = static_cast<const std::byte*>(event->param.conn.private_data);
      private_data.assign(data, data + event->param.conn.private_data_len);
    }
    event.reset();  // ids must not be destroyed before
    if (what == RDMA_CM_EVENT_CONNECT_REQUEST) {
      take_request(ConnectionId(id), private_data);
    } else if (what == RDMA_CM_EVENT_DEVICE_REMOVAL) {
      return Error(Code::kUnavailable, "the RDMA device was removed");
    } else {
      take_end(id, what);
    }
  }
}

void RdmaReceiver::Impl::take_request(ConnectionId id, const std::vector<std::byte>& private_data) {
  auto accepted = accept(id, private_data);
  if (accepted) return;
  spdlog::warn("an RDMA connection was refused: {}", accepted.error().message());
  if (!id) return;
  const auto refusal = encode_answer(accepted.error());
  (void)rdma_reject(id.get(), refusal.data(), static_cast<std::uint8_t>(refusal.size()));
}

/// Leaves `id` where it was if it is still to be rejected.
Status RdmaReceiver::Impl::accept(ConnectionId& id, const std::vector<std::byte>& private_data) {
  GCR_ASSIGN(const Hello hello, decode_hello(private_data));
  if (!same_token(options_.token, hello.token)) {
    return Error(Code::kPermissionDenied, "the connection's token is not this transfer's");
  }
  GCR_TRY(check_room());
  ibv_pd* const domain = regions_.domain_of(id->verbs);
  if (domain == nullptr) return Error(Code::kInternal, "the connection came by another device");
  std::uint8_t timeout = acknowledgement_timeout(options_.peer_timeout);
  (void)rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
                        sizeof timeout);
  GCR_ASSIGN(auto queue_pair, QueuePair::make(std::move(id), domain, hello.depth));
  LaneService service{.answer = [this, domain](const Message& m) { return answer(m, domain); },
                      .broken = [this] { return broken(); },
                      .cancelled = [this] { return cancelled_.load(); }};
  GCR_ASSIGN(auto lane,
             ReceiverLane::make(std::move(queue_pair), options_.peer_timeout, std::move(service)));
  const auto welcome = encode_answer({});
  rdma_conn_param parameters = connection_parameters(welcome);
  if (rdma_accept(lane->queue_pair().id(), &parameters) != 0) {
    return verbs_error("accept the connection");
  }
  const std::lock_guard lock(mutex_);
  Lane& added = lanes_.emplace_back();
  added.lane = std::move(lane);
  added.thread = std::thread([this, &added] { serve(added); });
  return {};
}

Status RdmaReceiver::Impl::check_room() const {
  if (auto error = broken()) return *error;
  if (lanes() < options_.max_lanes) return {};
  return Error(Code::kResourceExhausted,
               fmt::format("this transfer has {} RDMA connections already", options_.max_lanes));
}

/// Something other than a request happened to a lane's connection.
void RdmaReceiver::Impl::take_end(const rdma_cm_id* id, rdma_cm_event_type what) {
  const std::lock_guard lock(mutex_);
  for (Lane& lane : lanes_) {
    if (lane.lane->queue_pair().id() != id) continue;
    if (what == RDMA_CM_EVENT_ESTABLISHED) {
      lane.established = true;
    } else if (what != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
      lane.lane->queue_pair().disconnect();  // its thread sees its requests fail
    }
  }
}

void RdmaReceiver::Impl::serve(Lane& lane) {
  become_lane_thread();
  if (auto served = lane.lane->serve(); served) {
    lane.lane->end();
  } else if (lane.established || lane.lane->has_heard()) {
    break_with(served.error());
    lane.lane->end_with(broken().value_or(served.error()));
  } else {
    spdlog::warn("an RDMA connection was not completed: {}", served.error().message());
  }
  {
    const std::lock_guard lock(mutex_);
    lane.over = true;
  }
  wake_up(wake_);
}

Result<Message> RdmaReceiver::Impl::answer(const Message& request, const ibv_pd* domain) {
  if (request.type == MessageType::kRegionQuery) return regions_.key_for(request, domain);
  if (request.type != MessageType::kLanded) {
    return Error(Code::kProtocol, fmt::format("the sender sent a message of type {}",
                                              static_cast<unsigned>(request.type)));
  }
  GCR_ASSIGN(const RegionTable::Pin pin,
             regions_.pin(request.region, request.offset, request.length));
  payload_bytes_.fetch_add(request.length, std::memory_order_relaxed);
  writes_.fetch_add(1, std::memory_order_relaxed);
  if (options_.on_landed) {
    GCR_TRY(options_.on_landed(request.region, request.offset, request.length));
  }
  return Message{.type = MessageType::kAcknowledged, .number = request.number};
}

/// Joins and forgets the lanes whose threads are done; their connections are closed by that.
void RdmaReceiver::Impl::collect_ended() {
  std::list<Lane> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto lane = lanes_.begin(); lane != lanes_.end();) {
      const auto next = std::next(lane);
      if (lane->over) ended.splice(ended.end(), lanes_, lane);
      lane = next;
    }
  }
  for (Lane& lane : ended) lane.thread.join();
}

std::optional<Error> RdmaReceiver::Impl::broken() const {
  const std::lock_guard lock(mutex_);
  return first_error_;
}

/// One lane's error is every lane's.
void RdmaReceiver::Impl::break_with(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!first_error_) first_error_ = error;
  for (Lane& lane : lanes_) lane.lane->disturb();
}

void RdmaReceiver::Impl::cancel() {
  cancelled_ = true;
  break_with(Error(Code::kCancelled, "the transfer was cancelled"));
}

unsigned RdmaReceiver::Impl::lanes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<unsigned>(
      std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return !lane.over; }));
}

Status RdmaReceiver::Impl::health() const {
  if (auto error = broken()) return *error;
  return {};
}

Statistics RdmaReceiver::Impl::statistics() const {
  const std::uint64_t payload = payload_bytes_.load(std::memory_order_relaxed);
  const std::uint64_t writes = writes_.load(std::memory_order_relaxed);
  return {.payload_bytes = payload,
          .wire_bytes = payload + writes * kMessageHeaderBytes,
          .writes = writes,
          .reconnections = 0};
}

RdmaReceiver::RdmaReceiver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RdmaReceiver::~RdmaReceiver() = default;

Result<std::unique_ptr<RdmaReceiver>> RdmaReceiver::listen(RdmaReceiverOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  GCR_TRY(impl->start());
  return std::unique_ptr<RdmaReceiver>(new RdmaReceiver(std::move(impl)));
}

std::vector<RdmaAddress> RdmaReceiver::addresses() const { return impl_->addresses(); }
unsigned RdmaReceiver::lanes() const { return impl_->lanes(); }
Status RdmaReceiver::add_region(RegionId region, std::span<std::byte> bytes) {
  return impl_->regions().add(region, bytes);
}
Status RdmaReceiver::add_region_dmabuf(RegionId region, const DmaBuf& memory) {
  return impl_->regions().add_dmabuf(region, memory);
}
Status RdmaReceiver::remove_region(RegionId region) { return impl_->regions().remove(region); }
void RdmaReceiver::cancel() { impl_->cancel(); }
Status RdmaReceiver::health() const { return impl_->health(); }
Statistics RdmaReceiver::statistics() const { return impl_->statistics(); }

}  // namespace gcr::transport
