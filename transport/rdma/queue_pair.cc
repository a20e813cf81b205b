#include "transport/rdma/queue_pair.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>

#include "transport/lane_thread.h"

namespace gcr::transport::rdma {
namespace {

// The id of a work request: its kind, shifted by this, and its slot.
constexpr unsigned kKindShift = 32;

std::uint64_t identity(Completion::Kind kind, unsigned slot) {
  return static_cast<std::uint64_t>(kind) << kKindShift | slot;
}

/// Converts the result of a call that returns an errno value instead of setting errno.
Error posting_error(int error, std::string_view doing) {
  errno = error;
  return verbs_error(doing);
}

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::make(ConnectionId id, ibv_pd* domain,
                                                   unsigned depth) {
  std::unique_ptr<QueuePair> made(new QueuePair(std::move(id), depth));
  GCR_TRY(made->make_queues(domain));
  for (unsigned slot = 0; slot < made->slots(); ++slot) GCR_TRY(made->post_receive(slot));
  return made;
}

Status QueuePair::make_queues(ibv_pd* domain) {
  buffers_.resize(std::size_t{2} * slots() * kMaxMessageBytes);
  GCR_ASSIGN(memory_, register_memory(domain, buffers_, IBV_ACCESS_LOCAL_WRITE));
  channel_.reset(ibv_create_comp_channel(id_->verbs));
  if (!channel_) return verbs_error("make a channel for completions");
  GCR_TRY(set_blocking(channel_->fd, false));
  ibv_qp_init_attr wanted{};
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = 2 * slots() + 1;  // a write and a message per slot; a liveness probe
  wanted.cap.max_recv_wr = slots();
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_recv_sge = 1;
  const auto entries = static_cast<int>(wanted.cap.max_send_wr + wanted.cap.max_recv_wr);
  completions_.reset(ibv_create_cq(id_->verbs, entries, nullptr, channel_.get(), 0));
  if (!completions_) return verbs_error("make a completion queue");
  wanted.send_cq = completions_.get();
  wanted.recv_cq = completions_.get();
  if (rdma_create_qp(id_.get(), domain, &wanted) != 0) return verbs_error("make a queue pair");
  queue_pair_.reset(id_.get());
  return {};
}

QueuePair::~QueuePair() {
  if (queue_pair_) disconnect();
}

void QueuePair::disconnect() { (void)rdma_disconnect(id_.get()); }

std::span<std::byte> QueuePair::send_buffer(unsigned slot) {
  return std::span(buffers_).subspan(std::size_t{slot} * kMaxMessageBytes, kMaxMessageBytes);
}

std::span<std::byte> QueuePair::receive_buffer(unsigned slot) {
  return send_buffer(slots() + slot);
}

Status QueuePair::send(unsigned slot, const Message& message,
                       const std::optional<RemoteWrite>& write) {
  const auto buffer = send_buffer(slot);
  ibv_sge text{.addr = reinterpret_cast<std::uint64_t>(buffer.data()),
               .length = static_cast<std::uint32_t>(encode(message, buffer)),
               .lkey = memory_->lkey};
  ibv_send_wr sending{};
  sending.wr_id = identity(Completion::Kind::kSent, slot);
  sending.sg_list = &text;
  sending.num_sge = 1;
  sending.opcode = IBV_WR_SEND;
  sending.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* first = &sending;
  ibv_sge payload{};
  ibv_send_wr writing{};
  if (write) {
    payload = {.addr = reinterpret_cast<std::uint64_t>(write->from),
               .length = write->length_bytes,
               .lkey = write->local_key};
    writing.wr_id = sending.wr_id;
    writing.next = &sending;
    writing.sg_list = &payload;
    writing.num_sge = 1;
    writing.opcode = IBV_WR_RDMA_WRITE;
    writing.wr.rdma.remote_addr = write->address;
    writing.wr.rdma.rkey = write->remote_key;
    first = &writing;
  }
  return post(first, "post a send");
}

Status QueuePair::post(ibv_send_wr* first, std::string_view doing) {
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(id_->qp, first, &refused);
  if (error != 0) return posting_error(error, doing);
  return {};
}

Status QueuePair::check_liveness(std::chrono::milliseconds peer_timeout, std::string_view peer) {
  const auto now = std::chrono::steady_clock::now();
  if (!last_heard_) last_heard_ = now;
  const auto silence = now - *last_heard_;
  if (silence < peer_timeout / 4) return {};
  if (!probing_) {
    probing_ = true;
    ibv_send_wr asking{};
    asking.wr_id = identity(Completion::Kind::kProbe, 0);
    asking.opcode = IBV_WR_RDMA_WRITE;
    asking.send_flags = IBV_SEND_SIGNALED;
    return post(&asking, "post an empty write");
  }
  if (silence < peer_timeout) return {};
  return Error(Code::kUnavailable,
               fmt::format("{} stopped answering: nothing arrived from it for {} ms", peer,
                           peer_timeout.count()));
}

Status QueuePair::post_receive(unsigned slot) {
  const auto buffer = receive_buffer(slot);
  ibv_sge room{.addr = reinterpret_cast<std::uint64_t>(buffer.data()),
               .length = static_cast<std::uint32_t>(buffer.size()),
               .lkey = memory_->lkey};
  ibv_recv_wr receiving{};
  receiving.wr_id = identity(Completion::Kind::kReceived, slot);
  receiving.sg_list = &room;
  receiving.num_sge = 1;
  ibv_recv_wr* refused = nullptr;
  const int error = ibv_post_recv(id_->qp, &receiving, &refused);
  if (error != 0) return posting_error(error, "post a receive");
  return {};
}

Status QueuePair::drain(const std::function<Status(const Completion&)>& take) {
  std::array<ibv_wc, 16> some;
  for (;;) {
    const int count = ibv_poll_cq(completions_.get(), some.size(), some.data());
    if (count < 0) return Error(Code::kIo, "cannot poll the completion queue of an RDMA device");
    for (const ibv_wc& raw : std::span(some).first(static_cast<std::size_t>(count))) {
      const Completion completion{.kind = static_cast<Completion::Kind>(raw.wr_id >> kKindShift),
                                  .slot = static_cast<unsigned>(raw.wr_id),
                                  .length_bytes = raw.byte_len,
                                  .raw = raw};
      if (completion.succeeded()) last_heard_ = std::chrono::steady_clock::now();
      if (completion.succeeded() && completion.kind == Completion::Kind::kProbe) {
        probing_ = false;
      } else {
        GCR_TRY(take(completion));
      }
    }
    if (count > 0) continue;
    if (armed_) return {};
    const int error = ibv_req_notify_cq(completions_.get(), 0);
    if (error != 0) return posting_error(error, "ask for a notification");
    armed_ = true;  // poll once more for completions that arrived in between
  }
}

void QueuePair::acknowledge_notification() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(channel_.get(), &queue, &context) != 0) return;
  ibv_ack_cq_events(queue, 1);
  armed_ = false;
}

Result<Message> QueuePair::received(const Completion& completion) const {
  const std::size_t at = std::size_t{slots() + completion.slot} * kMaxMessageBytes;
  return decode(std::span(buffers_).subspan(at, completion.length_bytes));
}

}  // namespace gcr::transport::rdma
