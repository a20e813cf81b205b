// The receiver's end over RDMA: a thread listens on all addresses, accepts or refuses connection
// requests, and forwards connection events. Each accepted connection has a ReceiverLane with a
// thread of its own. The first error of a lane breaks all of them.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <mutex>
#include <thread>

#include "transport/rdma/receiver_lane.h"

namespace gcr::transport {

using namespace rdma;  // NOLINT: this file belongs to that namespace

namespace {

constexpr int kBacklog = 16;

class RdmaListener final : public RdmaReceiver {
 public:
  explicit RdmaListener(RdmaReceiverOptions options) : options_(std::move(options)) {}
  ~RdmaListener() override;

  /// Listens on all addresses and starts the thread; call once, before all other methods.
  Status start();

  std::vector<Address> addresses() const override { return options_.addresses; }
  Status add_region(RegionId region, std::span<std::byte> bytes) override {
    return incoming_.regions.add(region, bytes);
  }
  Status open_window(LandingWindow window) override {
    GCR_TRY(window.check(options_.max_lanes));
    GCR_TRY(incoming_.regions.open_window(window.bytes, options_.max_lanes));
    incoming_.on_arrived = std::move(window.on_arrived);
    return {};
  }
  Status add_windowed_region(RegionId region, std::uint64_t size_bytes) override {
    return incoming_.regions.add_windowed(region, size_bytes);
  }
  Status remove_region(RegionId region) override { return incoming_.regions.remove(region); }
  void cancel() override;
  Status health() const override { return incoming_.broken.status(); }
  Statistics statistics() const override { return incoming_.counters.statistics(); }

 private:
  /// One accepted connection. Only its thread uses `lane`, except that any thread may disconnect
  /// it.
  struct Lane {
    std::unique_ptr<ReceiverLane> lane;
    std::atomic<bool> established = false;  ///< the sender has received the acceptance
    bool over = false;                      ///< the thread has finished; guarded by mutex_
    std::jthread thread;
  };

  Status listen(Address& address);
  void run();
  Status handle_events();
  void handle_request(ConnectionId id, const std::vector<std::byte>& private_data);
  Status accept(ConnectionId& id, const std::vector<std::byte>& private_data);
  Status check_admission();
  void on_lane_event(const rdma_cm_id* id, rdma_cm_event_type what);
  void serve(Lane& lane);
  void collect_ended();
  Error break_with(const Error& error);

  RdmaReceiverOptions options_;
  Incoming incoming_;
  EventChannel events_;
  std::vector<ConnectionId> listeners_;
  UniqueFd wake_;  ///< a lane is over, or stop_ is set
  std::atomic<bool> stop_ = false;

  std::mutex mutex_;
  std::list<Lane> lanes_;  ///< guarded by mutex_; changed by the thread only
  std::jthread thread_;
};

RdmaListener::~RdmaListener() {
  cancel();
  stop_ = true;
  wake_up(wake_);
  if (thread_.joinable()) thread_.join();
  for (Lane& lane : lanes_) lane.thread.join();  // before any of them is destroyed
}

Status RdmaListener::start() {
  if (options_.addresses.empty() || options_.token.size() > kMaxRdmaTokenBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("an RDMA receiver has an address, and a token of at most {} bytes",
                             kMaxRdmaTokenBytes));
  }
  incoming_.on_landed = options_.on_landed;
  incoming_.peer_timeout = options_.peer_timeout;
  GCR_TRY(check_rdma_available());
  GCR_ASSIGN(events_, make_event_channel());
  GCR_ASSIGN(wake_, make_wake());
  for (Address& address : options_.addresses) {
    if (auto listening = listen(address); !listening) {
      return listening.error().while_doing("cannot listen on " + describe(address));
    }
  }
  thread_ = std::jthread([this] { run(); });
  return {};
}

Status RdmaListener::listen(Address& address) {
  GCR_ASSIGN(auto local, resolve(address));
  GCR_ASSIGN(ConnectionId id, make_id(events_.get()));
  if (rdma_bind_addr(id.get(), local.front().get()) != 0) {
    return verbs_error("bind the address");
  }
  if (id->verbs == nullptr) {
    return Error(Code::kInvalidArgument, "the address belongs to no RDMA device");
  }
  GCR_TRY(incoming_.regions.domains.add(id->verbs));
  if (rdma_listen(id.get(), kBacklog) != 0) return verbs_error("listen");
  address.port = ntohs(rdma_get_src_port(id.get()));
  listeners_.push_back(std::move(id));
  return {};
}

void RdmaListener::run() {
  become_lane_thread("gcr-rdma");
  std::array<pollfd, 2> waits{pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                              pollfd{.fd = events_->fd, .events = POLLIN, .revents = 0}};
  while (!stop_) {
    const auto ready = wait_ready(waits, std::chrono::hours(1));
    clear_wake(wake_);
    const Status taken = ready ? handle_events() : Status(ready.error());
    if (!taken) return (void)break_with(taken.error());
    collect_ended();
  }
}

Status RdmaListener::handle_events() {
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
    event.reset();  // acknowledge it before its id is destroyed
    if (what == RDMA_CM_EVENT_CONNECT_REQUEST) {
      handle_request(ConnectionId(id), private_data);
    } else if (what == RDMA_CM_EVENT_DEVICE_REMOVAL) {
      return Error(Code::kUnavailable, "the RDMA device was removed");
    } else {
      on_lane_event(id, what);
    }
  }
}

void RdmaListener::handle_request(ConnectionId id, const std::vector<std::byte>& private_data) {
  auto accepted = accept(id, private_data);
  if (accepted) return;
  spdlog::warn("an RDMA connection was refused: {}", accepted.error().message());
  if (!id) return;
  const auto refusal = encode_answer(accepted.error());
  (void)rdma_reject(id.get(), refusal.data(), static_cast<std::uint8_t>(refusal.size()));
}

/// Accepts the connection. On failure `id` is still set if the caller must reject it.
Status RdmaListener::accept(ConnectionId& id, const std::vector<std::byte>& private_data) {
  GCR_ASSIGN(const Hello hello, decode_hello(private_data));
  if (!same_token(options_.token, hello.token)) {
    return Error(Code::kPermissionDenied, "the connection has the token of another transfer");
  }
  GCR_TRY(check_admission());
  ibv_pd* const domain = incoming_.regions.domains.find(id->verbs);
  if (domain == nullptr)
    return Error(Code::kInternal,
                 "the connection uses a device on which this transfer does not listen");
  (void)set_peer_timeout(id.get(), options_.peer_timeout);
  GCR_ASSIGN(auto queue_pair, QueuePair::make(std::move(id), domain, hello.depth));
  GCR_ASSIGN(UniqueFd wake, make_wake());
  auto lane = std::make_unique<ReceiverLane>(std::move(queue_pair), std::move(wake), incoming_);
  const auto welcome = encode_answer({});
  rdma_conn_param parameters = connection_parameters(welcome);
  if (rdma_accept(lane->queue_pair().id(), &parameters) != 0) {
    return verbs_error("accept the connection");
  }
  const std::lock_guard lock(mutex_);
  Lane& added = lanes_.emplace_back();
  added.lane = std::move(lane);
  added.thread = std::jthread([this, &added] { serve(added); });
  return {};
}

Status RdmaListener::check_admission() {
  GCR_TRY(health());
  const std::lock_guard lock(mutex_);
  const auto lanes = std::ranges::count(lanes_, false, &Lane::over);
  if (static_cast<unsigned>(lanes) < options_.max_lanes) return {};
  return Error(Code::kResourceExhausted,
               fmt::format("this transfer has {} RDMA connections already", options_.max_lanes));
}

/// Handles an event of an accepted connection.
void RdmaListener::on_lane_event(const rdma_cm_id* id, rdma_cm_event_type what) {
  const std::lock_guard lock(mutex_);
  for (Lane& lane : lanes_) {
    if (lane.lane->queue_pair().id() != id) continue;
    if (what == RDMA_CM_EVENT_ESTABLISHED) {
      lane.established = true;
    } else if (what != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
      lane.lane->queue_pair().disconnect();  // the lane's thread notices that its requests fail
    }
  }
}

void RdmaListener::serve(Lane& lane) {
  become_lane_thread("gcr-rdma");
  if (auto served = lane.lane->serve(); served) {
    lane.lane->end();
  } else if (lane.established || lane.lane->has_heard()) {
    lane.lane->end_with(break_with(served.error()));
  } else {
    spdlog::warn("an RDMA connection was not completed: {}", served.error().message());
  }
  {
    const std::lock_guard lock(mutex_);
    lane.over = true;
  }
  wake_up(wake_);
}

/// Destroys the lanes whose threads have finished, which closes their connections.
void RdmaListener::collect_ended() {
  std::list<Lane> ended;  // destroyed after the lock was released
  const std::lock_guard lock(mutex_);
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    const auto next = std::next(lane);
    if (lane->over) ended.splice(ended.end(), lanes_, lane);
    lane = next;
  }
}

/// Breaks all lanes with `error`, unless they are broken already; returns the first error.
Error RdmaListener::break_with(const Error& error) {
  const Error first = incoming_.broken.set(error);
  const std::lock_guard lock(mutex_);
  for (const Lane& lane : lanes_) lane.lane->interrupt();
  return first;
}

void RdmaListener::cancel() {
  incoming_.cancelled = true;
  (void)break_with(Error(Code::kCancelled, "the transfer was cancelled"));
}

}  // namespace

Result<std::unique_ptr<RdmaReceiver>> listen_rdma(RdmaReceiverOptions options) {
  auto receiver = std::make_unique<RdmaListener>(std::move(options));
  GCR_TRY(receiver->start());
  return receiver;
}

}  // namespace gcr::transport
