#include "transport/rdma/receiver_lane.h"

#include <fmt/format.h>

#include <array>

namespace gcr::transport::rdma {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long a finished lane waits for its sender to close the connection.
constexpr milliseconds kLinger{5000};

}  // namespace

ReceiverLane::ReceiverLane(std::unique_ptr<QueuePair> queue_pair, UniqueFd wake, Incoming& incoming)
    : queue_pair_(std::move(queue_pair)),
      wake_(std::make_shared<const UniqueFd>(std::move(wake))),
      incoming_(incoming) {
  for (unsigned slot = 1; slot < queue_pair_->slots(); ++slot) free_slots_.push_back(slot);
}

Status ReceiverLane::serve() {
  for (;;) {
    GCR_TRY(poll_once(incoming_.peer_timeout / 4));
    while (!requests_.empty() && !free_slots_.empty() && !ended_) {
      GCR_TRY(incoming_.broken.status());
      GCR_TRY(handle_request());
    }
    if (ended_) return {};
    GCR_TRY(incoming_.broken.status());
    GCR_TRY(acknowledge_places());
    if (failure_) return *failure_;  // all earlier requests have been answered
    if (auto alive = queue_pair_->check_liveness(incoming_.peer_timeout, "the sender"); !alive) {
      failure_ = alive.error();
    }
  }
}

/// Handles all completions; if no request can be answered then, waits up to `limit` for more.
Status ReceiverLane::poll_once(milliseconds limit) {
  const auto taking = [this](const Completion& completion) { return handle(completion); };
  GCR_TRY(queue_pair_->drain(taking));
  if (failure_ || (!requests_.empty() && !free_slots_.empty())) return {};
  std::array<pollfd, 2> waits{
      pollfd{.fd = wake_->get(), .events = POLLIN, .revents = 0},
      pollfd{.fd = queue_pair_->completion_fd(), .events = POLLIN, .revents = 0}};
  GCR_TRY(wait_ready(waits, limit));
  clear_wake(*wake_);
  if (waits[1].revents == 0) return {};
  queue_pair_->acknowledge_notification();
  return queue_pair_->drain(taking);
}

Status ReceiverLane::handle(const Completion& completion) {
  if (!completion.succeeded()) {
    if (!failure_) failure_ = completion_error(completion.raw, "the sender");
    return {};
  }
  if (completion.kind == Completion::Kind::kReceived) {
    requests_.push_back(completion);
    has_heard_ = true;
  } else if (completion.slot == 0) {
    last_word_sent_ = true;
  } else {
    free_slots_.push_back(completion.slot);
  }
  return {};
}

Status ReceiverLane::handle_request() {
  const Completion completion = requests_.front();
  requests_.pop_front();
  GCR_ASSIGN(const Message request, queue_pair_->received(completion));
  GCR_TRY(queue_pair_->post_receive(completion.slot));
  if (request.type == MessageType::kEnd) {
    ended_ = true;
    return {};
  }
  GCR_ASSIGN(const std::optional<Message> reply, answer(request));
  return reply ? send(*reply) : Status();
}

/// Sends an answer; there must be a free slot.
Status ReceiverLane::send(const Message& message) {
  const unsigned slot = free_slots_.back();
  free_slots_.pop_back();
  return queue_pair_->send(slot, message);
}

/// Handles a request and returns its answer; nullopt if the answer is sent later.
Result<std::optional<Message>> ReceiverLane::answer(const Message& request) {
  if (request.type == MessageType::kRegionQuery) {
    GCR_ASSIGN(const Message key,
               incoming_.regions.key_for(request, queue_pair_->id()->qp->pd, wake_, part_));
    return std::optional(key);
  }
  if (request.type != MessageType::kLanded) {
    return Error(Code::kProtocol, fmt::format("the sender sent a message of type {}",
                                              static_cast<unsigned>(request.type)));
  }
  GCR_ASSIGN(const RegionTable::Pin pin,
             incoming_.regions.pin(request.region, request.offset, request.length));
  if (pin.windowed() != (request.places != 0)) {
    return Error(Code::kProtocol,
                 fmt::format("the sender wrote to the landing window instead of region {}, or the "
                             "other way round",
                             request.region));
  }
  incoming_.counters.add_bytes(request.length, kMessageHeaderBytes);
  incoming_.counters.add_write();
  if (pin.windowed()) {
    GCR_TRY(land_in_window(request));
    return std::optional<Message>();
  }
  if (incoming_.on_landed) {
    GCR_TRY(incoming_.on_landed(request.region, request.offset, request.length));
  }
  return std::optional(Message{.type = MessageType::kAcknowledged, .number = request.number});
}

/// Passes the bytes in a place on; acknowledge_places() answers when the place is released.
Status ReceiverLane::land_in_window(const Message& request) {
  if (!part_)
    return Error(Code::kProtocol, "the sender wrote to the landing window without a key for it");
  GCR_ASSIGN(Place place, part_->claim(request.places - 1U, request.length, request.number));
  return incoming_.on_arrived(request.region, request.offset, std::move(place));
}

Status ReceiverLane::acknowledge_places() {
  if (!part_ || free_slots_.empty()) return {};
  for (const std::uint64_t number : part_->take_released(free_slots_.size())) {
    GCR_TRY(send({.type = MessageType::kAcknowledged, .number = number}));
  }
  return {};
}

/// Handles completions until `done` is true, the connection is closed, or kLinger has passed.
template <class Condition>
void ReceiverLane::linger(Condition done) {
  const auto deadline = steady_clock::now() + kLinger;
  while (!failure_ && !incoming_.cancelled && !done()) {
    requests_.clear();
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0 || !poll_once(left)) return;
  }
}

void ReceiverLane::end_with(const Error& error) {
  if (!failure_ && !incoming_.cancelled) {
    const Message last_word{.type = MessageType::kError, .error = error};
    if (queue_pair_->send(0, last_word)) linger([this] { return last_word_sent_; });
  }
  queue_pair_->disconnect();
}

void ReceiverLane::end() {
  linger([] { return false; });
  queue_pair_->disconnect();
}

}  // namespace gcr::transport::rdma
