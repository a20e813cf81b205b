#include "transport/rdma/sender.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <functional>

#include "transport/rdma/lane_thread.h"

namespace gcr::transport::rdma {
namespace {

// Writes up to this size are copied instead of waited for, even from registered memory.
constexpr std::size_t kCopiedBytes = 16 * kKiB;

}  // namespace

Result<std::unique_ptr<RdmaChannel>> RdmaSender::start(std::string peer, const RdmaOptions& options,
                                                       EventChannel events,
                                                       std::vector<SenderDevice> devices,
                                                       std::vector<Lane> lanes) {
  std::unique_ptr<RdmaSender> sender(new RdmaSender());
  sender->peer_ = std::move(peer);
  sender->piece_bytes_ = options.piece_bytes;
  sender->peer_timeout_ = options.peer_timeout;
  sender->events_ = std::move(events);
  sender->devices_ = std::move(devices);
  sender->lanes_ = std::move(lanes);
  GCR_ASSIGN(sender->wake_, make_wake());
  sender->thread_ = std::thread([raw = sender.get()] { raw->run(); });
  return std::unique_ptr<RdmaChannel>(std::move(sender));
}

RdmaSender::~RdmaSender() {
  if (!thread_.joinable()) return;
  for (Lane& lane : lanes_) lane.lane->say_end(peer_timeout_);
  stop_ = true;
  wake_up(wake_);
  thread_.join();
}

std::optional<Error> RdmaSender::broken() const {
  if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return error_;
}

/// Breaks the channel with `error` unless it was broken before; gives the error that broke it.
Error RdmaSender::fail(Error error) {
  Error first = error;
  {
    const std::lock_guard lock(mutex_);
    if (!error_) {
      error_ = error.code() == Code::kCancelled ? std::move(error) : error.while_doing(peer_);
      failed_.store(true, std::memory_order_release);
    }
    first = *error_;
  }
  for (Lane& lane : lanes_) lane.lane->fail(first);
  pacer_.limit(0);
  wake_up(wake_);
  return first;
}

template <class Register>
Status RdmaSender::register_source(std::span<const std::byte> addresses, bool readable,
                                   Register how) {
  if (addresses.empty()) return {};
  Source source{.addresses = addresses, .readable = readable, .registered = {}};
  for (const SenderDevice& device : devices_) {
    GCR_ASSIGN(MemoryRegion registered, how(device.domain.get()));
    source.registered.push_back(std::move(registered));
  }
  const std::unique_lock lock(sources_mutex_);
  sources_.push_back(std::move(source));
  return {};
}

Status RdmaSender::add_source(std::span<const std::byte> bytes) {
  return register_source(bytes, true,
                         [&](ibv_pd* domain) { return register_memory(domain, bytes, 0); });
}

Status RdmaSender::add_source_dmabuf(const DmaBuf& source) {
  return register_source(source.addresses, false,
                         [&](ibv_pd* domain) { return register_dmabuf(domain, source, 0); });
}

/// The key under which `device` reads `bytes` in place; nothing if they are to be copied.
std::optional<std::uint32_t> RdmaSender::local_key(std::span<const std::byte> bytes,
                                                   std::size_t device) const {
  const std::shared_lock lock(sources_mutex_);
  const std::less_equal<> not_after;
  for (const Source& source : sources_) {
    if (not_after(source.addresses.data(), bytes.data()) &&
        not_after(bytes.data() + bytes.size(), source.addresses.data() + source.addresses.size())) {
      if (source.readable && bytes.size() <= kCopiedBytes) return std::nullopt;
      return source.registered[device]->lkey;
    }
  }
  return std::nullopt;
}

Status RdmaSender::write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (auto error = broken()) return *error;
  if (bytes.empty()) return {};
  Lane& lane = lanes_[next_.fetch_add(1, std::memory_order_relaxed) % lanes_.size()];
  if (auto written = write_pieces(lane, region, offset, bytes); !written) {
    return fail(std::move(written).error());
  }
  writes_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

Status RdmaSender::write_pieces(Lane& lane, RegionId region, std::uint64_t offset,
                                std::span<const std::byte> bytes) {
  const auto key = local_key(bytes, lane.device);
  SenderLane::Batch batch(*lane.lane);
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), piece_bytes_));
    pacer_.wait(piece.size());
    GCR_TRY(lane.lane->send({.region = region, .offset = offset, .bytes = piece, .local_key = key},
                            batch));
    payload_bytes_.fetch_add(piece.size(), std::memory_order_relaxed);
    wire_bytes_.fetch_add(piece.size() + kMessageHeaderBytes, std::memory_order_relaxed);
    offset += piece.size();
    bytes = bytes.subspan(piece.size());
  }
  if (!key) return {};
  return lane.lane->wait_for(batch);
}

Status RdmaSender::flush() {
  for (Lane& lane : lanes_) GCR_TRY(lane.lane->flush());
  if (auto error = broken()) return *error;
  return {};
}

void RdmaSender::limit_rate(std::uint64_t bytes_per_second) { pacer_.limit(bytes_per_second); }

void RdmaSender::cancel() { (void)fail(Error(Code::kCancelled, "the transfer was cancelled")); }

unsigned RdmaSender::useful_writers() const { return 2 * static_cast<unsigned>(lanes_.size()); }

Statistics RdmaSender::statistics() const {
  return {.payload_bytes = payload_bytes_.load(std::memory_order_relaxed),
          .wire_bytes = wire_bytes_.load(std::memory_order_relaxed),
          .writes = writes_.load(std::memory_order_relaxed),
          .reconnections = 0};
}

// The thread.

void RdmaSender::run() {
  become_lane_thread();
  while (!stop_ && !failed_) {
    if (auto turned = turn(); !turned) (void)fail(cause_of(turned.error()));
  }
  if (failed_) {
    for (Lane& lane : lanes_) lane.lane->queue_pair().disconnect();
  }
}

/// Takes what has completed, then waits for more.
Status RdmaSender::turn() {
  std::vector<pollfd> waits{{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                            {.fd = events_->fd, .events = POLLIN, .revents = 0}};
  for (Lane& lane : lanes_) {
    GCR_TRY(drain(lane));
    GCR_TRY(lane.life.look(lane.lane->queue_pair(), "the receiver"));
    waits.push_back(
        {.fd = lane.lane->queue_pair().completion_fd(), .events = POLLIN, .revents = 0});
  }
  const auto limit = lanes_.front().life.interval();
  if (::poll(waits.data(), waits.size(), static_cast<int>(limit.count())) < 0 && errno != EINTR) {
    return Error::from_errno(errno, "cannot wait for RDMA completions");
  }
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (waits[i + 2].revents != 0) lanes_[i].lane->queue_pair().take_notification();
  }
  if (waits[1].revents != 0) return take_events();
  return {};
}

Status RdmaSender::drain(Lane& lane) {
  return lane.lane->queue_pair().drain([&](const Completion& completion) {
    lane.life.take(completion);
    return lane.lane->take(completion);
  });
}

/// What really ended the channel, if `error` was noticed first. If one lane fails, the receiver
/// ends the others, and that may be noticed before the first lane's own failure.
Error RdmaSender::cause_of(const Error& error) {
  if (error.code() != Code::kUnavailable) return error;
  for (Lane& lane : lanes_) {
    auto drained = drain(lane);
    if (!drained && drained.error().code() != Code::kUnavailable) return drained.error();
  }
  return error;
}

Status RdmaSender::take_events() {
  GCR_ASSIGN(const ConnectionEvent event, next_event(events_.get()));
  if (!event) return {};
  if (event->event != RDMA_CM_EVENT_DISCONNECTED && event->event != RDMA_CM_EVENT_DEVICE_REMOVAL) {
    return {};
  }
  // What the receiver said before comes first.
  for (Lane& lane : lanes_) GCR_TRY(drain(lane));
  if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
    return Error(Code::kUnavailable, "the RDMA device was removed");
  }
  return Error(Code::kUnavailable, "the receiver closed the connection");
}

}  // namespace gcr::transport::rdma
