#include "transport/rdma/receiver_lane.h"

#include <poll.h>

#include <array>
#include <cerrno>

#include "transport/rdma/lane_thread.h"

namespace gcr::transport::rdma {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long a lane that is done waits for its sender.
constexpr milliseconds kLinger{5000};

}  // namespace

ReceiverLane::ReceiverLane(std::unique_ptr<QueuePair> queue_pair, milliseconds peer_timeout,
                           LaneService service)
    : queue_pair_(std::move(queue_pair)), service_(std::move(service)), life_(peer_timeout) {
  for (unsigned slot = 1; slot < queue_pair_->slots(); ++slot) free_slots_.push_back(slot);
}

Result<std::unique_ptr<ReceiverLane>> ReceiverLane::make(std::unique_ptr<QueuePair> queue_pair,
                                                         milliseconds peer_timeout,
                                                         LaneService service) {
  std::unique_ptr<ReceiverLane> lane(
      new ReceiverLane(std::move(queue_pair), peer_timeout, std::move(service)));
  GCR_ASSIGN(lane->wake_, make_wake());
  return lane;
}

void ReceiverLane::disturb() { wake_up(wake_); }

Status ReceiverLane::serve() {
  for (;;) {
    GCR_TRY(turn(life_.interval()));
    while (!requests_.empty() && !free_slots_.empty() && !ended_) {
      if (auto error = service_.broken()) return *error;
      GCR_TRY(answer_one());
    }
    if (ended_) return {};
    if (auto error = service_.broken()) return *error;
    if (failure_) return *failure_;  // what came before it has been answered
    if (auto alive = life_.look(*queue_pair_, "the sender"); !alive) failure_ = alive.error();
  }
}

/// Takes what has completed; if that gives nothing to do, waits for more, but not for long.
Status ReceiverLane::turn(milliseconds limit) {
  const auto taking = [this](const Completion& completion) { return take(completion); };
  GCR_TRY(queue_pair_->drain(taking));
  if (failure_ || (!requests_.empty() && !free_slots_.empty())) return {};
  std::array<pollfd, 2> waits{
      pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0},
      pollfd{.fd = queue_pair_->completion_fd(), .events = POLLIN, .revents = 0}};
  if (::poll(waits.data(), waits.size(), static_cast<int>(limit.count())) < 0 && errno != EINTR) {
    return Error::from_errno(errno, "cannot wait for RDMA completions");
  }
  calm_down(wake_);
  if (waits[1].revents == 0) return {};
  queue_pair_->take_notification();
  return queue_pair_->drain(taking);
}

Status ReceiverLane::take(const Completion& completion) {
  if (!completion.succeeded()) {
    if (!failure_) failure_ = completion_error(completion.raw, "the sender");
    return {};
  }
  life_.take(completion);
  switch (completion.kind) {
    case Completion::Kind::kReceived:
      requests_.push_back(completion);
      has_heard_ = true;
      break;
    case Completion::Kind::kSent:
      if (completion.slot == 0) last_word_sent_ = true;
      if (completion.slot != 0) free_slots_.push_back(completion.slot);
      break;
    case Completion::Kind::kAlive:
      break;
  }
  return {};
}

Status ReceiverLane::answer_one() {
  const Completion completion = requests_.front();
  requests_.pop_front();
  GCR_ASSIGN(const Message request, queue_pair_->received(completion));
  GCR_TRY(queue_pair_->post_receive(completion.slot));
  if (request.type == MessageType::kEnd) {
    ended_ = true;
    return {};
  }
  GCR_ASSIGN(const Message answer, service_.answer(request));
  const unsigned slot = free_slots_.back();
  free_slots_.pop_back();
  return queue_pair_->send(slot, answer);
}

/// Turns until `done`, or the connection is closed, or the time is up.
template <class Condition>
void ReceiverLane::linger(Condition done) {
  const auto deadline = steady_clock::now() + kLinger;
  while (!failure_ && !service_.cancelled() && !done()) {
    requests_.clear();
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0 || !turn(left)) return;
  }
}

void ReceiverLane::end_with(const Error& error) {
  if (!failure_ && !service_.cancelled()) {
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
