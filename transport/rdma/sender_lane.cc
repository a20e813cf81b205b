// Each request occupies a slot until the device has sent it and the receiver has answered it; a
// piece for the landing window also occupies a place until then. Callers wait on changed_ for a
// free slot, a place, a key or the end of a batch; the draining thread calls handle(), which frees
// them.
#include "transport/rdma/sender_lane.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

namespace gcr::transport::rdma {
namespace {

// The low bits of a request's number are its slot.
constexpr unsigned kSlotBits = 8;
static_assert(kMaxDepth <= 1U << kSlotBits);

}  // namespace

SenderLane::SenderLane(std::unique_ptr<QueuePair> queue_pair, ibv_pd* domain, unsigned depth,
                       std::size_t piece_bytes)
    : domain_(domain),
      piece_bytes_(piece_bytes),
      queue_pair_(std::move(queue_pair)),
      slots_(depth) {}

Status SenderLane::wait(std::unique_lock<std::mutex>& lock,
                        const std::function<bool()>& condition) {
  changed_.wait(lock, [&] { return error_ || condition(); });
  if (error_) return *error_;
  return {};
}

Result<unsigned> SenderLane::claim_slot(std::unique_lock<std::mutex>& lock, MessageType request) {
  auto free = slots_.end();
  GCR_TRY(wait(lock, [&] {
    free = std::ranges::find(slots_, MessageType::kInvalid, &Slot::request);
    return free != slots_.end();
  }));
  const auto slot = static_cast<unsigned>(free - slots_.begin());
  *free = {.request = request, .number = requests_++ << kSlotBits | slot};
  return slot;
}

/// Waits for a free place of the window and assigns it to the request in `slot`.
Status SenderLane::claim_place(std::unique_lock<std::mutex>& lock, Slot& slot) {
  GCR_TRY(wait(lock, [&] { return !free_places_->empty(); }));
  slot.place = free_places_->back();
  free_places_->pop_back();
  return {};
}

Result<SenderLane::Key> SenderLane::key_of(RegionId region) {
  std::unique_lock lock(mutex_);
  if (!keys_.contains(region)) {
    GCR_ASSIGN(const unsigned slot, claim_slot(lock, MessageType::kRegionQuery));
    slots_[slot].region = region;
    GCR_TRY(queue_pair_->send(
        slot,
        {.type = MessageType::kRegionQuery, .region = region, .number = slots_[slot].number}));
    GCR_TRY(wait(lock, [&] { return keys_.contains(region); }));
  }
  return keys_.at(region);
}

Status SenderLane::make_copies() {
  const std::lock_guard lock(mutex_);
  if (copies_) return {};
  const std::size_t size = slots_.size() * piece_bytes_;
  void* const at =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return Error::from_errno(errno, "cannot make a buffer to send from");
  UniqueMapping copies(at, size);
  GCR_ASSIGN(copies_registered_, register_memory(domain_, copies.bytes(), IBV_ACCESS_LOCAL_WRITE));
  copies_ = std::move(copies);
  return {};
}

/// Returns the registered memory that holds the bytes: the caller's, or the copy of `slot`.
Result<RemoteWrite> SenderLane::source_of(unsigned slot, const Piece& piece) {
  RemoteWrite write{.from = piece.bytes.data(),
                    .length_bytes = static_cast<std::uint32_t>(piece.bytes.size())};
  if (piece.local_key) {
    write.local_key = *piece.local_key;
    return write;
  }
  GCR_TRY(make_copies());
  const auto copy = copies_.bytes().subspan(slot * piece_bytes_, piece.bytes.size());
  std::memcpy(copy.data(), piece.bytes.data(), copy.size());
  write.from = copy.data();
  write.local_key = copies_registered_->lkey;
  return write;
}

Status SenderLane::send(const Piece& piece, Batch& batch) {
  GCR_ASSIGN(const Key key, key_of(piece.region));
  const std::uint64_t length = piece.bytes.size();
  // A write that does not fit goes to the receiver, whose error is clearer than its device's.
  const bool fits = piece.offset <= key.length && length <= key.length - piece.offset;
  Message message{.type = MessageType::kLanded,
                  .region = piece.region,
                  .offset = piece.offset,
                  .length = length};
  unsigned slot = 0;
  {
    std::unique_lock lock(mutex_);
    GCR_ASSIGN(slot, claim_slot(lock, MessageType::kLanded));
    if (key.windowed && fits) GCR_TRY(claim_place(lock, slots_[slot]));
    Slot& taken = slots_[slot];
    taken.refusable = !fits;
    taken.region = piece.region;
    taken.offset = piece.offset;
    taken.length = length;
    if (piece.local_key) {
      taken.batch = &batch;
      ++batch.unsent;
    }
    message.number = taken.number;
    message.places = taken.place;
  }
  if (!fits) return queue_pair_->send(slot, message);
  GCR_ASSIGN(RemoteWrite write, source_of(slot, piece));
  const std::uint64_t window_offset = (message.places - std::uint64_t{1}) * kPlaceBytes;
  write.address = key.address + (key.windowed ? window_offset : piece.offset);
  write.remote_key = key.key;
  return queue_pair_->send(slot, message, write);
}

Status SenderLane::wait_for(Batch& batch) {
  std::unique_lock lock(mutex_);
  return wait(lock, [&] { return batch.unsent == 0; });
}

Status SenderLane::flush() {
  std::unique_lock lock(mutex_);
  const std::vector<Slot> before = slots_;
  return wait(lock, [&] {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (before[i].request != MessageType::kInvalid && slots_[i].number == before[i].number &&
          slots_[i].request != MessageType::kInvalid) {
        return false;
      }
    }
    return true;
  });
}

void SenderLane::send_end(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (error_) return;
  const auto slot = static_cast<unsigned>(slots_.size());
  if (!queue_pair_->send(slot, {.type = MessageType::kEnd})) return;
  changed_.wait_for(lock, limit, [&] { return error_ || ended_; });
}

void SenderLane::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    for (Slot& slot : slots_) slot.batch = nullptr;
  }
  changed_.notify_all();
}

Error SenderLane::failure_of(const Completion& completion) const {
  const Error plain = completion_error(completion.raw, "the receiver");
  if (completion.kind != Completion::Kind::kSent || completion.slot >= slots_.size()) return plain;
  const Slot& slot = slots_[completion.slot];
  if (slot.request != MessageType::kLanded) return plain;
  const std::string doing = fmt::format("write of {} bytes at offset {} into region {}",
                                        slot.length, slot.offset, slot.region);
  // The write fitted the region, so the region was removed.
  if (completion.raw.status != IBV_WC_REM_ACCESS_ERR) return plain.while_doing(doing);
  return Error(Code::kNotFound,
               fmt::format("{}, which the receiver has removed: {}", doing, plain.message()));
}

void SenderLane::free_if_done(Slot& slot) {
  if (!slot.sent || !slot.answered) return;
  if (slot.place != 0) free_places_->push_back(slot.place);
  slot = {.number = slot.number};
}

Status SenderLane::handle(const Completion& completion) {
  const std::unique_lock lock(mutex_);
  if (!completion.succeeded()) return failure_of(completion);
  if (completion.kind == Completion::Kind::kReceived) {
    GCR_ASSIGN(const Message message, queue_pair_->received(completion));
    GCR_TRY(queue_pair_->post_receive(completion.slot));
    GCR_TRY(handle_answer(message));
  } else if (completion.kind == Completion::Kind::kSent && completion.slot == slots_.size()) {
    ended_ = true;
  } else if (completion.kind == Completion::Kind::kSent) {
    Slot& slot = slots_.at(completion.slot);
    slot.sent = true;
    if (slot.batch != nullptr) --slot.batch->unsent;
    slot.batch = nullptr;
    free_if_done(slot);
  }
  changed_.notify_all();
  return {};
}

Status SenderLane::handle_answer(const Message& message) {
  if (message.error) return message.error->while_doing("the receiver reports");
  const std::size_t index = message.number & ((1U << kSlotBits) - 1);
  const bool is_key = message.type == MessageType::kRegionKey;
  const MessageType request = is_key ? MessageType::kRegionQuery : MessageType::kLanded;
  if ((!is_key && message.type != MessageType::kAcknowledged) || index >= slots_.size() ||
      slots_[index].request != request || slots_[index].number != message.number ||
      slots_[index].answered || slots_[index].refusable ||
      (is_key && slots_[index].region != message.region)) {
    return Error(Code::kProtocol,
                 fmt::format("the receiver sent an answer without a request (type {}, number {})",
                             static_cast<unsigned>(message.type), message.number));
  }
  if (is_key) {
    keys_[message.region] = {.address = message.offset,
                             .length = message.length,
                             .key = message.key,
                             .windowed = message.places != 0};
    if (message.places != 0 && !free_places_) {
      free_places_.emplace(message.places);
      std::iota(free_places_->rbegin(), free_places_->rend(), std::uint16_t{1});
    }
  }
  slots_[index].answered = true;
  free_if_done(slots_[index]);
  return {};
}

}  // namespace gcr::transport::rdma
