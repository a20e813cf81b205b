#include "migrate-agent/gpu/access/door/door.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "migrate-agent/gpu/access/door/sentences.h"
#include "src/base/descriptor_passing.h"
#include "src/base/random.h"

namespace gcr::gpu {
namespace {

static_assert(door::kMaxEntries <= kMaxPassedDescriptors);

using Clock = std::chrono::steady_clock;

/// How long a reply may take beyond the time that the application itself was given.
constexpr std::chrono::seconds kSlack{10};
/// For an inventory that keeps changing while it is read; each attempt is a few packets.
constexpr int kInventoryAttempts = 100;
/// With more allocations the list is taken to be endless.
constexpr std::size_t kMaxInventory = 1 << 20;
/// More packets than a socket holds.
constexpr int kMaxStalePackets = 4096;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

struct Received {
  ssize_t length;
  bool truncated;
  std::vector<UniqueFd> descriptors;
};

/// One packet, if there is one now; the length is -1 with errno set otherwise.
Received receive_packet(int socket, door::DoorReply* reply) {
  std::array<int, door::kMaxEntries> descriptors;
  const ReceivedMessage received =
      receive_with_descriptors(socket, writable_bytes_of(*reply), descriptors, MSG_DONTWAIT);
  return {received.length,
          received.truncated,
          {descriptors.begin(), descriptors.begin() + received.count}};
}

/// Drops replies that an agent left unread when it died. Packets without a byte are dropped too.
void discard_stale(int socket) {
  door::DoorReply stale;
  pollfd readable{socket, POLLIN, 0};
  for (int packets = 0; packets < kMaxStalePackets; ++packets) {
    if (::poll(&readable, 1, 0) <= 0 || (readable.revents & POLLIN) == 0) return;
    if (receive_packet(socket, &stale).length < 0) return;
    if ((readable.revents & POLLHUP) != 0) return;
  }
}

/// Not 0.
template <class T>
T random_number() {
  T value = 0;
  while (value == 0) value = std::bit_cast<T>(random_bytes<sizeof(T)>());
  return value;
}

LocalAllocation allocation_of(const door::DoorEntry& entry) {
  LocalAllocation allocation{.local_id = entry.id, .size_bytes = entry.size_bytes};
  if (entry.host_node >= 0) allocation.host_node = static_cast<std::uint32_t>(entry.host_node);
  allocation.shared = (entry.flags & door::kShared) != 0;
  std::memcpy(allocation.gpu.bytes.data(), entry.device_uuid, sizeof entry.device_uuid);
  return allocation;
}

}  // namespace

/// A reply and the descriptors that came with it.
struct Door::Exchange {
  door::DoorReply reply;
  std::vector<UniqueFd> descriptors;
};

/// How long an answer may take, and the error if it takes longer.
struct Door::Limit {
  Limit(pid_t pid, const char* doing, Milliseconds patience)
      : deadline(Clock::now() + patience),
        silence(Code::kTimeout,
                fmt::format("the preload library in process {} did not answer within {} ms: {}",
                            pid, patience.count(), doing)) {}

  Clock::time_point deadline;
  Error silence;
};

Door::Door(pid_t pid, FoundDoor found, Milliseconds patience)
    : pid_(pid),
      found_(std::move(found)),
      patience_(patience),
      session_(random_number<std::uint64_t>()),
      sequence_(random_number<std::uint32_t>()) {}

Result<Door> Door::open(pid_t pid, Milliseconds lock_patience, Milliseconds patience) {
  GCR_ASSIGN(FoundDoor found, find_door(pid, lock_patience));
  discard_stale(found.socket.get());
  return Door(pid, std::move(found), patience);
}

Result<std::unique_ptr<GpuAccess>> open_access(pid_t pid, GpuAccess::Milliseconds lock_patience,
                                               GpuAccess::Milliseconds patience) {
  GCR_ASSIGN(Door door, Door::open(pid, lock_patience, patience));
  return std::make_unique<Door>(std::move(door));
}

door::DoorRequest Door::make_request(door::Op op) {
  door::DoorRequest request{};
  request.version = door::kVersion;
  request.op = op;
  request.sequence = ++sequence_;
  request.session = session_;
  return request;
}

Error Door::ended() const {
  return Error(Code::kNotFound, fmt::format("process {} has ended", pid_));
}

Status Door::send(const door::DoorRequest& request, std::span<const int> descriptors,
                  const Limit& limit) {
  while (send_with_descriptors(found_.socket.get(), bytes_of(request), descriptors, MSG_DONTWAIT) <
         0) {
    if (errno == EPIPE || errno == ECONNRESET) return ended();
    if (errno != EAGAIN) {
      return Error::from_errno(errno, fmt::format("cannot write to the door of process {}", pid_));
    }
    pollfd room{found_.socket.get(), POLLOUT, 0};
    if (::poll(&room, 1, milliseconds_until(limit.deadline)) == 0) return limit.silence;
  }
  return {};
}

Result<Door::Exchange> Door::receive(std::uint32_t sequence, const Limit& limit) {
  for (;;) {
    Exchange exchange;
    Received received = receive_packet(found_.socket.get(), &exchange.reply);
    if (received.length < 0 && errno != EAGAIN) {
      if (errno == ECONNRESET) return ended();
      return Error::from_errno(errno, fmt::format("cannot read from the door of process {}", pid_));
    }
    if (received.length < 0) {
      pollfd waiting[2] = {{found_.socket.get(), POLLIN, 0}, {found_.process.get(), POLLIN, 0}};
      if (::poll(waiting, 2, milliseconds_until(limit.deadline)) == 0) return limit.silence;
      if ((waiting[0].revents & POLLIN) == 0 && waiting[1].revents != 0) return ended();
      continue;
    }
    if (received.length == 0) return ended();
    if (received.truncated) {
      return Error(Code::kResourceExhausted,
                   fmt::format("too many open files for the descriptors of process {}", pid_));
    }
    if (received.length != sizeof(exchange.reply) || exchange.reply.version != door::kVersion ||
        exchange.reply.count > door::kMaxEntries) {
      return Error(Code::kProtocol,
                   fmt::format("the door of process {} sent {} bytes that are no reply", pid_,
                               received.length));
    }
    if (exchange.reply.sequence != sequence) {  // to an earlier request
      if (Clock::now() >= limit.deadline) return limit.silence;
      continue;
    }
    exchange.descriptors = std::move(received.descriptors);
    return exchange;
  }
}

Result<Door::Exchange> Door::exchange(const door::DoorRequest& request, const Limit& limit,
                                      std::span<const int> descriptors) {
  GCR_TRY(send(request, descriptors, limit));
  return receive(request.sequence, limit);
}

/// `order` names the request in a refusal, "cannot <order>".
Result<Door::Exchange> Door::ask(const door::DoorRequest& request, const char* order,
                                 const Limit& limit, std::span<const int> descriptors) {
  GCR_ASSIGN(Exchange answer, exchange(request, limit, descriptors));
  if (answer.reply.outcome != door::Outcome::kOk) return refusal(answer.reply, pid_, order);
  return answer;
}

Result<door::Summary> Door::hello(Milliseconds patience) {
  GCR_ASSIGN(const door::DoorReply reply, greet(patience));
  return reply.summary;
}

Result<door::DoorReply> Door::greet(Milliseconds patience) {
  GCR_ASSIGN(const Exchange answer,
             ask(make_request(door::Op::kHello), "read the state", {pid_, "greeting", patience}));
  return answer.reply;
}

Result<AccessState> Door::read_state(Milliseconds patience) {
  GCR_ASSIGN(const door::DoorReply reply, greet(patience));
  const door::Summary& summary = reply.summary;
  const auto has = [&](std::uint32_t blockers) { return (summary.blockers & blockers) != 0; };
  return AccessState{.quiet = summary.gate_closed != 0,
                     .detached = summary.detached != 0,
                     .managed_memory = has(door::kManagedMemory),
                     .ipc_memory = has(door::kIpcExported | door::kIpcImported),
                     .foreign_handles = has(door::kForeignHandles),
                     .lost_pools = has(door::kLostPools),
                     .profiled = has(door::kProfiled),
                     .past_gate = past_gate_in_words(reply),
                     .untracked_bytes = summary.untracked_bytes,
                     .withheld = summary.withheld,
                     .thread = summary.door_tid,
                     .stack = summary.door_stack};
}

/// Nothing if it has changed while it was read.
Result<std::optional<std::vector<door::DoorEntry>>> Door::inventory_once() {
  const Limit limit(pid_, "listing its allocations", patience_);
  const door::DoorRequest request = make_request(door::Op::kInventory);
  GCR_TRY(send(request, {}, limit));
  std::vector<door::DoorEntry> entries;
  std::uint64_t generation = 0;
  bool changed = false;
  for (bool first = true;; first = false) {
    GCR_ASSIGN(const Exchange answer, receive(request.sequence, limit));
    const door::DoorReply& reply = answer.reply;
    if (reply.outcome != door::Outcome::kOk) return refusal(reply, pid_, "list the allocations");
    if (first) generation = reply.summary.generation;
    if (reply.summary.generation != generation) changed = true;
    entries.insert(entries.end(), reply.entries, reply.entries + reply.count);
    if (entries.size() > kMaxInventory || (reply.count == 0 && reply.last == 0)) {
      return Error(Code::kProtocol, fmt::format("process {} lists allocations without end", pid_));
    }
    if (reply.last == 0) continue;
    if (changed || reply.summary.allocations != entries.size()) return std::nullopt;
    return entries;
  }
}

Result<std::vector<door::DoorEntry>> Door::inventory() {
  for (int attempt = 0; attempt < kInventoryAttempts; ++attempt) {
    GCR_ASSIGN(auto entries, inventory_once());
    if (entries) return std::move(*entries);
  }
  return Error(Code::kUnavailable,
               fmt::format("process {} allocates faster than its allocations can be listed", pid_));
}

Result<std::vector<LocalAllocation>> Door::allocations() {
  GCR_ASSIGN(const auto entries, inventory());
  std::vector<LocalAllocation> allocations;
  allocations.reserve(entries.size());
  std::ranges::transform(entries, std::back_inserter(allocations), allocation_of);
  return allocations;
}

/// An answer with an entry for each id, and so many descriptors for each.
Result<Door::Exchange> Door::ask_for_descriptors(door::Op op, std::span<const std::uint64_t> ids,
                                                 std::size_t each, const char* order,
                                                 const char* doing) {
  door::DoorRequest request = make_request(op);
  request.count = static_cast<std::uint32_t>(ids.size());
  std::copy(ids.begin(), ids.end(), request.ids);
  GCR_ASSIGN(Exchange answer, ask(request, order, {pid_, doing, patience_}));
  if (answer.reply.count != ids.size() || answer.descriptors.size() != each * ids.size()) {
    return Error(Code::kProtocol, fmt::format("process {} sent {} descriptors for {} allocations",
                                              pid_, answer.descriptors.size(), ids.size()));
  }
  return answer;
}

Result<std::vector<ExportedAllocation>> Door::take(std::span<const std::uint64_t> ids) {
  std::vector<ExportedAllocation> exported;
  exported.reserve(ids.size());
  for (std::size_t done = 0; done < ids.size();) {
    const auto batch =
        ids.subspan(done, std::min<std::size_t>(door::kMaxEntries, ids.size() - done));
    GCR_ASSIGN(Exchange answer,
               ask_for_descriptors(door::Op::kExport, batch, 1, "export the allocations",
                                   "exporting its allocations"));
    for (std::size_t i = 0; i < batch.size(); ++i) {
      exported.push_back(
          {allocation_of(answer.reply.entries[i]), std::move(answer.descriptors[i])});
    }
    done += batch.size();
  }
  return exported;
}

Result<Held> Door::drain(door::DoorRequest request, Microseconds patience, const char* doing) {
  request.timeout_us = static_cast<std::uint32_t>(patience.count());
  const Limit limit(pid_, doing, std::chrono::ceil<Milliseconds>(patience) + kSlack);
  GCR_ASSIGN(const Exchange answer, exchange(request, limit));
  const door::DoorReply& reply = answer.reply;
  const bool timed_out = reply.outcome == door::Outcome::kTimeout;
  const bool stepped = reply.outcome != door::Outcome::kNotFound;  // else no call was held
  if (reply.outcome != door::Outcome::kOk && !timed_out && stepped) {
    return refusal(reply, pid_, "hold back the CUDA calls");
  }
  return Held{.quiet = reply.outcome == door::Outcome::kOk,
              .capturing = timed_out && reply.obstacle == door::Obstacle::kCapture,
              .obstacle = timed_out ? obstacle_in_words(reply.obstacle) : "",
              .waiting = reply.summary.held_calls};
}

Result<Held> Door::hold(Microseconds patience, Milliseconds lease) {
  door::DoorRequest request = make_request(door::Op::kCloseGate);
  request.lease_ms = static_cast<std::uint32_t>(lease.count());
  return drain(request, patience, "closing the gate");
}

Result<Held> Door::step(Microseconds patience) {
  return drain(make_request(door::Op::kStep), patience, "letting a call pass");
}

Status Door::resume() {
  GCR_TRY(ask(make_request(door::Op::kOpenGate), "let the CUDA calls go on",
              {pid_, "opening the gate", patience_}));
  return {};
}

Status Door::detach() {
  GCR_TRY(ask(make_request(door::Op::kDetach), "detach the VRAM",
              {pid_, "letting go of its VRAM", patience_}));
  return {};
}

Status Door::offer(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors) {
  for (std::size_t done = 0; done < descriptors.size();) {
    const std::size_t count = std::min<std::size_t>(door::kMaxEntries, descriptors.size() - done);
    door::DoorRequest request = make_request(door::Op::kOffer);
    request.count = static_cast<std::uint32_t>(count);
    int numbers[door::kMaxEntries];
    for (std::size_t i = 0; i < count; ++i) {
      request.ids[i] = descriptors[done + i].first;
      numbers[i] = descriptors[done + i].second.get();
    }
    GCR_TRY(ask(request, "hand back the VRAM", {pid_, "taking back its descriptors", patience_},
                {numbers, count}));
    done += count;
  }
  return {};
}

Status Door::attach(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors) {
  GCR_TRY(offer(std::move(descriptors)));
  GCR_TRY(
      ask(make_request(door::Op::kAttach), "map the VRAM", {pid_, "mapping its VRAM", patience_}));
  return {};
}

/// Older libraries do not know this request.
Result<std::vector<Replacement>> Door::replace(std::span<const std::uint64_t> ids) {
  static_assert(kMostReplaced == door::kMaxEntries / 2);
  GCR_ASSIGN(Exchange answer, ask_for_descriptors(door::Op::kReplace, ids, 2, "make its own VRAM",
                                                  "making its own VRAM"));
  std::vector<Replacement> made;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    made.push_back({allocation_of(answer.reply.entries[i]), std::move(answer.descriptors[2 * i]),
                    std::move(answer.descriptors[2 * i + 1])});
  }
  return made;
}

Result<std::uint64_t> Door::advise(door::Op op, std::span<const Pages> pages, const char* doing) {
  constexpr std::size_t kMostPairs = door::kMaxEntries / 2;
  std::uint64_t bytes = 0;
  while (!pages.empty()) {
    const auto batch = pages.first(std::min(kMostPairs, pages.size()));
    door::DoorRequest request = make_request(op);
    request.count = static_cast<std::uint32_t>(2 * batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      request.ids[2 * i] = batch[i].address;
      request.ids[2 * i + 1] = batch[i].bytes;
    }
    GCR_ASSIGN(const Exchange answer, exchange(request, {pid_, doing, patience_}));
    const door::DoorReply& reply = answer.reply;
    if (reply.outcome != door::Outcome::kOk) {
      return Error(
          reply.outcome == door::Outcome::kNotFound ? Code::kNotFound : Code::kRefused,
          fmt::format("process {} failed at {}, address {:#x}", pid_, doing, reply.failed_id));
    }
    bytes += reply.advised_bytes;
    pages = pages.subspan(batch.size());
  }
  return bytes;
}

Result<std::uint64_t> Door::drop_pages(std::span<const Pages> pages) {
  return advise(door::Op::kDropPages, pages, "dropping its pages of zeros");
}

Status Door::use_huge_pages(std::span<const Pages> pages) {
  GCR_TRY(advise(door::Op::kUseHugePages, pages, "marking memory for huge pages"));
  return {};
}

/// Older libraries do not know this request.
Result<UniqueFd> Door::watch_memory() {
  GCR_ASSIGN(Exchange answer, exchange(make_request(door::Op::kWatchMemory),
                                       {pid_, "making a userfaultfd", patience_}));
  if (answer.reply.outcome != door::Outcome::kOk || answer.descriptors.size() != 1) {
    return Error(Code::kUnsupported, fmt::format("process {} gives no userfaultfd", pid_));
  }
  return std::move(answer.descriptors.front());
}

Result<std::vector<GpuAccess::Pages>> Door::registered_memory() {
  std::vector<Pages> found;
  for (;;) {
    door::DoorRequest request = make_request(door::Op::kRegisteredMemory);
    request.count = 1;
    request.ids[0] = found.empty() ? 0 : found.back().address;
    GCR_ASSIGN(const Exchange answer, ask(request, "list the registered memory",
                                          {pid_, "listing its registered memory", patience_}));
    for (const door::DoorEntry& entry : std::span(answer.reply.entries, answer.reply.count)) {
      if (!found.empty() && entry.id <= found.back().address) {
        return Error(Code::kProtocol,
                     fmt::format("process {} lists registered memory out of order", pid_));
      }
      found.push_back({entry.id, entry.size_bytes});
    }
    if (answer.reply.count < door::kMaxEntries) return found;
    if (found.size() > kMaxInventory) {
      return Error(Code::kProtocol,
                   fmt::format("process {} lists registered memory without end", pid_));
    }
  }
}

}  // namespace gcr::gpu
