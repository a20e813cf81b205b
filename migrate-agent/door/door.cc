#include "migrate-agent/door/door.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "migrate-agent/door/find_door.h"
#include "migrate-agent/door/sentences.h"
#include "src/base/descriptor_passing.h"

namespace gcr::agent {
namespace {

static_assert(door::kMaxEntries <= kMaxPassedDescriptors);

using Clock = std::chrono::steady_clock;

/// What a request may take on top of the time that the application itself was given.
constexpr std::chrono::seconds kSlack{10};
/// An inventory that keeps changing while it is read: each attempt is a few packets.
constexpr int kInventoryAttempts = 100;
/// More allocations than this are a list without end.
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

/// Throws away what a dead agent left unread. Packets without a byte count as such, too.
void drain(int socket) {
  door::DoorReply stale;
  pollfd readable{socket, POLLIN, 0};
  for (int packets = 0; packets < kMaxStalePackets; ++packets) {
    if (::poll(&readable, 1, 0) <= 0 || (readable.revents & POLLIN) == 0) return;
    if (receive_packet(socket, &stale).length < 0) return;
    if ((readable.revents & POLLHUP) != 0) return;
  }
}

template <class T>
T random_number() {
  T value = 0;
  while (value == 0) {
    if (::getrandom(&value, sizeof(value), 0) != sizeof(value)) value = 0;
  }
  return value;
}

}  // namespace

/// A reply and the descriptors that came with it.
struct Door::Exchange {
  door::DoorReply reply;
  std::vector<UniqueFd> descriptors;
};

Door::Door(pid_t pid, UniqueFd process, UniqueFd lock, UniqueFd socket)
    : pid_(pid),
      process_(std::move(process)),
      lock_(std::move(lock)),
      socket_(std::move(socket)),
      session_(random_number<std::uint64_t>()),
      sequence_(random_number<std::uint32_t>()) {}

Result<Door> Door::open(pid_t pid, Milliseconds patience) {
  GCR_ASSIGN(FoundDoor found, find_door(pid, patience));
  drain(found.socket.get());
  return Door(pid, std::move(found.process), std::move(found.card), std::move(found.socket));
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

Error Door::silent(const char* doing, Milliseconds deadline) const {
  return Error(Code::kTimeout,
               fmt::format("the preload library in process {} did not answer within {} ms: {}",
                           pid_, deadline.count(), doing));
}

Status Door::send(const door::DoorRequest& request, std::span<const int> descriptors,
                  Clock::time_point deadline) {
  while (send_with_descriptors(socket_.get(), bytes_of(request), descriptors, MSG_DONTWAIT) < 0) {
    if (errno == EPIPE || errno == ECONNRESET) return ended();
    if (errno != EAGAIN) {
      return Error::from_errno(errno, fmt::format("cannot write to the door of process {}", pid_));
    }
    pollfd room{socket_.get(), POLLOUT, 0};
    if (::poll(&room, 1, milliseconds_until(deadline)) == 0) {
      return Error(Code::kTimeout, fmt::format("the door of process {} is not read", pid_));
    }
  }
  return {};
}

Result<Door::Exchange> Door::receive(std::uint32_t sequence, Clock::time_point deadline) {
  for (;;) {
    Exchange exchange;
    Received received = receive_packet(socket_.get(), &exchange.reply);
    if (received.length < 0 && errno != EAGAIN) {
      if (errno == ECONNRESET) return ended();
      return Error::from_errno(errno, fmt::format("cannot read from the door of process {}", pid_));
    }
    if (received.length < 0) {
      pollfd waiting[2] = {{socket_.get(), POLLIN, 0}, {process_.get(), POLLIN, 0}};
      if (::poll(waiting, 2, milliseconds_until(deadline)) == 0) {
        return Error(Code::kTimeout, "no answer");
      }
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
      if (Clock::now() >= deadline) return Error(Code::kTimeout, "no answer");
      continue;
    }
    exchange.descriptors = std::move(received.descriptors);
    return exchange;
  }
}

Result<Door::Exchange> Door::ask(door::DoorRequest& request, std::span<const int> descriptors,
                                 Milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  GCR_TRY(send(request, descriptors, end));
  return receive(request.sequence, end);
}

namespace {

/// Names what was being done in a timeout that receive() reported.
template <class T>
Result<T> name_timeout(Result<T> result, const Error& silent) {
  if (!result && result.error().code() == Code::kTimeout) return silent;
  return result;
}

}  // namespace

Result<door::Summary> Door::hello(Milliseconds deadline) {
  door::DoorRequest request = make_request(door::Op::kHello);
  GCR_ASSIGN(const Exchange answer,
             name_timeout(ask(request, {}, deadline), silent("greeting", deadline)));
  if (answer.reply.outcome != door::Outcome::kOk) {
    return refusal(answer.reply, pid_, "read the state");
  }
  return answer.reply.summary;
}

Result<std::vector<door::DoorEntry>> Door::inventory_once(Milliseconds deadline, bool* torn) {
  const auto end = Clock::now() + deadline;
  door::DoorRequest request = make_request(door::Op::kInventory);
  GCR_TRY(send(request, {}, end));
  std::vector<door::DoorEntry> entries;
  std::uint64_t generation = 0;
  *torn = false;
  for (bool first = true;; first = false) {
    GCR_ASSIGN(const Exchange answer, name_timeout(receive(request.sequence, end),
                                                   silent("listing its allocations", deadline)));
    const door::DoorReply& reply = answer.reply;
    if (reply.outcome != door::Outcome::kOk) return refusal(reply, pid_, "list the allocations");
    if (first) generation = reply.summary.generation;
    if (reply.summary.generation != generation) *torn = true;
    entries.insert(entries.end(), reply.entries, reply.entries + reply.count);
    if (entries.size() > kMaxInventory || (reply.count == 0 && reply.last == 0)) {
      return Error(Code::kProtocol, fmt::format("process {} lists allocations without end", pid_));
    }
    if (reply.last != 0) {
      if (reply.summary.allocations != entries.size()) *torn = true;
      return entries;
    }
  }
}

Result<std::vector<door::DoorEntry>> Door::inventory(Milliseconds deadline) {
  for (int attempt = 0; attempt < kInventoryAttempts; ++attempt) {
    bool torn = false;
    GCR_ASSIGN(auto entries, inventory_once(deadline, &torn));
    if (!torn) return entries;
  }
  return Error(Code::kUnavailable,
               fmt::format("process {} allocates faster than its allocations can be listed", pid_));
}

Result<std::vector<ExportedBuffer>> Door::export_buffers(std::span<const std::uint64_t> ids,
                                                         Milliseconds deadline) {
  std::vector<ExportedBuffer> exported;
  exported.reserve(ids.size());
  for (std::size_t done = 0; done < ids.size();) {
    const auto batch =
        ids.subspan(done, std::min<std::size_t>(door::kMaxEntries, ids.size() - done));
    door::DoorRequest request = make_request(door::Op::kExport);
    request.count = static_cast<std::uint32_t>(batch.size());
    std::copy(batch.begin(), batch.end(), request.ids);
    GCR_ASSIGN(Exchange answer, name_timeout(ask(request, {}, deadline),
                                             silent("exporting its allocations", deadline)));
    if (answer.reply.outcome != door::Outcome::kOk) {
      return refusal(answer.reply, pid_, "export the allocations");
    }
    if (answer.reply.count != batch.size() || answer.descriptors.size() != batch.size()) {
      return Error(Code::kProtocol, fmt::format("process {} sent {} descriptors for {} allocations",
                                                pid_, answer.descriptors.size(), batch.size()));
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      exported.push_back({answer.reply.entries[i], std::move(answer.descriptors[i])});
    }
    done += batch.size();
  }
  return exported;
}

Status Door::close_gate(Milliseconds timeout, Milliseconds lease) {
  door::DoorRequest request = make_request(door::Op::kCloseGate);
  request.timeout_ms = static_cast<std::uint32_t>(timeout.count());
  request.lease_ms = static_cast<std::uint32_t>(lease.count());
  const Milliseconds deadline = timeout + kSlack;
  GCR_ASSIGN(const Exchange answer,
             name_timeout(ask(request, {}, deadline), silent("closing the gate", deadline)));
  if (answer.reply.outcome == door::Outcome::kOk) return {};
  return refusal(answer.reply, pid_, "hold back the CUDA calls");
}

Status Door::detach(Milliseconds deadline) {
  door::DoorRequest request = make_request(door::Op::kDetach);
  GCR_ASSIGN(const Exchange answer,
             name_timeout(ask(request, {}, deadline), silent("letting go of its VRAM", deadline)));
  if (answer.reply.outcome == door::Outcome::kOk) return {};
  return refusal(answer.reply, pid_, "detach the VRAM");
}

Status Door::offer(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors,
                   Milliseconds deadline) {
  for (std::size_t done = 0; done < descriptors.size();) {
    const std::size_t count = std::min<std::size_t>(door::kMaxEntries, descriptors.size() - done);
    door::DoorRequest request = make_request(door::Op::kOffer);
    request.count = static_cast<std::uint32_t>(count);
    int numbers[door::kMaxEntries];
    for (std::size_t i = 0; i < count; ++i) {
      request.ids[i] = descriptors[done + i].first;
      numbers[i] = descriptors[done + i].second.get();
    }
    GCR_ASSIGN(const Exchange answer,
               name_timeout(ask(request, {numbers, count}, deadline),
                            silent("taking back its descriptors", deadline)));
    if (answer.reply.outcome != door::Outcome::kOk) {
      return refusal(answer.reply, pid_, "hand back the VRAM");
    }
    done += count;
  }
  return {};
}

Status Door::attach(Milliseconds deadline) {
  door::DoorRequest request = make_request(door::Op::kAttach);
  GCR_ASSIGN(const Exchange answer,
             name_timeout(ask(request, {}, deadline), silent("mapping its VRAM", deadline)));
  if (answer.reply.outcome == door::Outcome::kOk) return {};
  return refusal(answer.reply, pid_, "map the VRAM");
}

Status Door::open_gate(Milliseconds deadline) {
  door::DoorRequest request = make_request(door::Op::kOpenGate);
  GCR_ASSIGN(const Exchange answer,
             name_timeout(ask(request, {}, deadline), silent("opening the gate", deadline)));
  if (answer.reply.outcome == door::Outcome::kOk) return {};
  return refusal(answer.reply, pid_, "let the CUDA calls go on");
}

Result<std::uint64_t> Door::advise(door::Op op, std::span<const Pages> pages, Milliseconds deadline,
                                   const char* doing) {
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
    GCR_ASSIGN(const Exchange answer,
               name_timeout(ask(request, {}, deadline), silent(doing, deadline)));
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

Result<std::uint64_t> Door::drop_pages(std::span<const Pages> pages, Milliseconds deadline) {
  return advise(door::Op::kDropPages, pages, deadline, "dropping its pages of zeros");
}

Status Door::use_huge_pages(std::span<const Pages> pages, Milliseconds deadline) {
  GCR_TRY(advise(door::Op::kUseHugePages, pages, deadline, "marking memory for huge pages"));
  return {};
}

}  // namespace gcr::agent
