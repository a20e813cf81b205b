#include "transport/rdma/sender.h"

#include <algorithm>
#include <functional>

#include "transport/lane_thread.h"

namespace gcr::transport::rdma {
namespace {

// Writes up to this size are copied, even from registered memory, so that the caller need not wait.
constexpr std::size_t kCopiedBytes = 16 * kKiB;

}  // namespace

Status RdmaSender::start(std::string peer) {
  peer_ = std::move(peer);
  GCR_ASSIGN(wake_, make_wake());
  thread_ = std::thread([this] { run(); });
  return {};
}

RdmaSender::~RdmaSender() {
  if (!thread_.joinable()) return;
  for (const auto& lane : lanes_) lane->send_end(options_.peer_timeout);
  stop_ = true;
  wake_up(wake_);
  thread_.join();
}

/// Breaks the channel with `error` unless it was broken before; returns the error that broke it.
Error RdmaSender::fail(Error error) {
  const bool cancelled = error.code() == Code::kCancelled;
  const Error first = broken_.set(cancelled ? std::move(error) : error.while_doing(peer_));
  for (const auto& lane : lanes_) lane->fail(first);
  pacer_.limit(0);
  wake_up(wake_);
  return first;
}

Status RdmaSender::add_source(std::span<const std::byte> bytes) {
  GCR_ASSIGN(auto registered, domains_.register_all(bytes, 0));
  const std::unique_lock lock(sources_mutex_);
  sources_.push_back({.bytes = bytes, .registered = std::move(registered)});
  return {};
}

/// The key with which a lane of `domain` reads `bytes` in place; nullopt if they must be copied.
std::optional<std::uint32_t> RdmaSender::local_key(std::span<const std::byte> bytes,
                                                   const ibv_pd* domain) const {
  if (bytes.size() <= kCopiedBytes) return std::nullopt;
  const std::shared_lock lock(sources_mutex_);
  const std::less_equal<> not_after;
  for (const Source& source : sources_) {
    if (not_after(source.bytes.data(), bytes.data()) &&
        not_after(bytes.data() + bytes.size(), source.bytes.data() + source.bytes.size())) {
      return of_domain(source.registered, domain)->lkey;
    }
  }
  return std::nullopt;
}

Status RdmaSender::write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes) {
  GCR_TRY(broken_.status());
  if (bytes.empty()) return {};
  SenderLane& lane = *lanes_[next_.fetch_add(1, std::memory_order_relaxed) % lanes_.size()];
  SenderLane::Batch batch;
  if (auto written = write_pieces(lane, region, offset, bytes, batch); !written) {
    return fail(std::move(written).error());
  }
  counters_.add_write();
  return {};
}

Status RdmaSender::write_pieces(SenderLane& lane, RegionId region, std::uint64_t offset,
                                std::span<const std::byte> bytes, SenderLane::Batch& batch) {
  const auto key = local_key(bytes, lane.domain());
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), options_.piece_bytes));
    pacer_.wait(piece.size());
    GCR_TRY(
        lane.send({.region = region, .offset = offset, .bytes = piece, .local_key = key}, batch));
    counters_.add_bytes(piece.size(), kMessageHeaderBytes);
    offset += piece.size();
    bytes = bytes.subspan(piece.size());
  }
  if (!key) return {};
  return lane.wait_for(batch);
}

Status RdmaSender::flush() {
  for (const auto& lane : lanes_) GCR_TRY(lane->flush());
  return broken_.status();
}

void RdmaSender::cancel() { (void)fail(Error(Code::kCancelled, "the transfer was cancelled")); }

// ---- The thread that drains the queue pairs ----

void RdmaSender::run() {
  become_lane_thread("gcr-rdma");
  while (!stop_ && !broken_) {
    if (auto polled = poll_once(); !polled) (void)fail(cause_of(polled.error()));
  }
  if (!broken_) return;
  for (const auto& lane : lanes_) lane->queue_pair().disconnect();
}

/// Handles all completions, then waits for more.
Status RdmaSender::poll_once() {
  std::vector<pollfd> waits{{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                            {.fd = events_->fd, .events = POLLIN, .revents = 0}};
  for (const auto& lane : lanes_) {
    GCR_TRY(drain(*lane));
    GCR_TRY(lane->queue_pair().check_liveness(options_.peer_timeout, "the receiver"));
    waits.push_back({.fd = lane->queue_pair().completion_fd(), .events = POLLIN, .revents = 0});
  }
  GCR_TRY(wait_ready(waits, options_.peer_timeout / 4));
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (waits[i + 2].revents != 0) lanes_[i]->queue_pair().acknowledge_notification();
  }
  if (waits[1].revents != 0) return handle_events();
  return {};
}

Status RdmaSender::drain(SenderLane& lane) {
  return lane.queue_pair().drain(
      [&](const Completion& completion) { return lane.handle(completion); });
}

/// Finds the original failure when `error` was noticed first. If one lane fails, the receiver
/// closes the others, and that may be noticed before the failure of the first lane.
Error RdmaSender::cause_of(const Error& error) {
  if (error.code() != Code::kUnavailable) return error;
  for (const auto& lane : lanes_) {
    auto drained = drain(*lane);
    if (!drained && drained.error().code() != Code::kUnavailable) return drained.error();
  }
  return error;
}

Status RdmaSender::handle_events() {
  GCR_ASSIGN(const ConnectionEvent event, next_event(events_.get()));
  if (!event) return {};
  if (event->event != RDMA_CM_EVENT_DISCONNECTED && event->event != RDMA_CM_EVENT_DEVICE_REMOVAL) {
    return {};
  }
  // An error that the receiver sent before it closed takes precedence.
  for (const auto& lane : lanes_) GCR_TRY(drain(*lane));
  if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
    return Error(Code::kUnavailable, "the RDMA device was removed");
  }
  return Error(Code::kUnavailable, "the receiver closed the connection");
}

}  // namespace gcr::transport::rdma
