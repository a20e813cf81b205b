// The door's thread. It handles one request after the other; it calls no malloc and takes no locks
// except those of the runtimes' state, because stopped threads may hold others.
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "preload/bindings.h"
#include "preload/descriptors.h"
#include "preload/door.h"
#include "preload/gate.h"
#include "preload/log.h"
#include "preload/pages.h"
#include "preload/runtime.h"
#include "src/base/descriptor_passing.h"

namespace gcr::preload {
namespace {

static_assert(door::kMaxEntries <= kMaxPassedDescriptors);

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kLongestClose = std::chrono::minutes(10);
constexpr milliseconds kSendPatience = std::chrono::seconds(2);

/// One packet and the descriptors that came with it.
struct Packet {
  door::DoorRequest request;
  bool empty;
  bool well_formed;
  int descriptors[door::kMaxEntries];
  std::size_t descriptor_count;
};

class DoorServer {
 public:
  explicit DoorServer(int fd) : fd_(fd) { ::fstat(fd, &identity_); }
  void run();

 private:
  bool still_ours();
  bool receive(Packet* packet) const;
  void handle(Packet& packet);
  void handle_hello(door::DoorReply& reply);
  void handle_detach(const door::DoorRequest& request, door::DoorReply& reply);
  void handle_inventory(door::DoorReply& reply);
  void handle_export(const Packet& packet, door::DoorReply& reply);
  void handle_replace(const Packet& packet, door::DoorReply& reply);
  void handle_watch_memory(door::DoorReply& reply);
  void handle_registered_memory(const door::DoorRequest& request, door::DoorReply& reply);
  void handle_close_gate(const door::DoorRequest& request, door::DoorReply& reply);
  void handle_step(const door::DoorRequest& request, door::DoorReply& reply);
  void answer(door::DoorReply& reply, const runtime::Ending& ending,
              const int* descriptors = nullptr, std::size_t descriptors_each = 1);
  void send(const door::DoorReply& reply, const int* descriptors, std::size_t count) const;
  int milliseconds_to_lease_end() const;
  void end_lease();

  int fd_;
  struct stat identity_ {};
  Clock::time_point request_start_;
  nanoseconds lease_{0};  ///< 0: none
  Clock::time_point lease_end_;
};

/// Whether the descriptor is still the door's: the application may have closed it and reused its
/// number. A restore of the process changes the inode, but not the kind of socket.
bool DoorServer::still_ours() {
  struct stat now {};
  if (::fstat(fd_, &now) != 0 || !S_ISSOCK(now.st_mode)) return false;
  if (now.st_dev == identity_.st_dev && now.st_ino == identity_.st_ino) return true;
  int domain = 0;
  int type = 0;
  socklen_t length = sizeof(int);
  if (::getsockopt(fd_, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX ||
      ::getsockopt(fd_, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_SEQPACKET) {
    return false;
  }
  identity_ = now;
  return true;
}

int DoorServer::milliseconds_to_lease_end() const {
  if (lease_.count() == 0) return -1;
  const auto left = std::chrono::ceil<milliseconds>(lease_end_ - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

void DoorServer::end_lease() {
  lease_ = nanoseconds(0);
  if (gate::is_closed() && !runtime::is_detached()) {
    log_line("the agent sent no request within its lease: opening the gate");
    gate::open();
  }
}

void DoorServer::run() {
  for (;;) {
    pollfd waiting{fd_, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, milliseconds_to_lease_end());
    if (ready < 0 && errno == EINTR) continue;
    if (!still_ours()) break;
    if (ready == 0) {
      if (milliseconds_to_lease_end() == 0) end_lease();
      continue;
    }
    Packet packet{};
    const bool gone = (waiting.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
    // After the last close of the other end, reads return what is queued, then empty packets
    // forever.
    if ((waiting.revents & POLLIN) == 0 || !receive(&packet) || (gone && packet.empty)) {
      if (gone) break;
      continue;
    }
    handle(packet);
    if (lease_.count() != 0) lease_end_ = Clock::now() + lease_;
  }
  end_lease();
  log_line("the door's socket was closed: its thread ends");
}

/// Receives one packet; false if there was none.
bool DoorServer::receive(Packet* packet) const {
  const auto receive_now = [&] {
    return receive_with_descriptors(fd_, writable_bytes_of(packet->request), packet->descriptors,
                                    MSG_DONTWAIT);
  };
  ReceivedMessage received;
  if (runtime::is_detached()) {
    // While detached, kOffer brings descriptors that the library keeps, one per allocation.
    const RaisedDescriptorLimit limit;
    received = receive_now();
    for (std::size_t i = 0; i < received.count; ++i) {
      packet->descriptors[i] = limit.move_high(packet->descriptors[i]);
    }
  } else {
    received = receive_now();
  }
  packet->descriptor_count = received.count;
  if (received.length < 0) return false;
  packet->empty = received.length == 0 && received.count == 0;
  packet->well_formed = received.length == sizeof(packet->request) && !received.truncated &&
                        packet->request.version == door::kVersion &&
                        packet->request.count <= door::kMaxEntries && packet->request.session != 0;
  if (received.length < static_cast<ssize_t>(sizeof(packet->request))) packet->request = {};
  return true;
}

void DoorServer::send(const door::DoorReply& reply, const int* descriptors,
                      std::size_t count) const {
  const auto deadline = Clock::now() + kSendPatience;
  while (send_with_descriptors(fd_, bytes_of(reply), {descriptors, count}, MSG_DONTWAIT) < 0) {
    if (errno != EAGAIN) break;
    // The agent does not read: it is slow or dead. The process owns both ends, so there is no
    // EPIPE.
    pollfd room{fd_, POLLOUT, 0};
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    if (left <= 0 || ::poll(&room, 1, static_cast<int>(left)) == 0) break;
  }
}

void DoorServer::answer(door::DoorReply& reply, const runtime::Ending& ending,
                        const int* descriptors, std::size_t descriptors_each) {
  reply.outcome = ending.outcome;
  reply.driver_result = static_cast<std::int32_t>(ending.driver_result);
  reply.failed_id = ending.failed_id;
  reply.last = 1;
  const std::uint32_t blockers = reply.summary.blockers;
  reply.summary = runtime::summarize();
  reply.summary.blockers |= blockers;
  reply.summary.door_stack = reinterpret_cast<std::uintptr_t>(&reply);
  reply.duration_ns =
      static_cast<std::uint64_t>(nanoseconds(Clock::now() - request_start_).count());
  send(reply, descriptors, descriptors == nullptr ? 0 : reply.count * descriptors_each);
}

/// Scans for calls past the gate, but not while the gate is closed: after a restore, a thread that
/// is stopped there may hold the loader's lock.
void DoorServer::handle_hello(door::DoorReply& reply) {
  if (!gate::is_closed() && bindings::scan(reply.past_gate) == bindings::Found::kPastTheGate) {
    reply.summary.blockers = door::kPastGate;
  }
  answer(reply, {});
}

void DoorServer::handle_detach(const door::DoorRequest& request, door::DoorReply& reply) {
  runtime::Ending ending{door::Outcome::kBadRequest};
  if (!runtime::is_detached() && bindings::scan(reply.past_gate) != bindings::Found::kNothing) {
    reply.summary.blockers = door::kPastGate;
  } else {
    ending = runtime::detach(request.session);
  }
  if (runtime::is_detached()) lease_ = nanoseconds(0);
  answer(reply, ending);
}

void DoorServer::handle_inventory(door::DoorReply& reply) {
  std::uint64_t after_id = 0;
  for (;;) {
    const std::size_t count = runtime::list(after_id, reply.entries);
    reply.count = static_cast<std::uint32_t>(count);
    if (count < door::kMaxEntries) break;
    after_id = reply.entries[count - 1].id;
    reply.outcome = door::Outcome::kOk;
    reply.summary = runtime::summarize();
    send(reply, nullptr, 0);
  }
  answer(reply, {});
}

void DoorServer::handle_export(const Packet& packet, door::DoorReply& reply) {
  const std::size_t count = packet.request.count;
  int descriptors[door::kMaxEntries];
  const runtime::Ending ending =
      runtime::export_all(packet.request.session, {packet.request.ids, count},
                          {reply.entries, count}, {descriptors, count});
  reply.count = ending.outcome == door::Outcome::kOk ? packet.request.count : 0;
  answer(reply, ending, descriptors);
  runtime::close_loose();
}

void DoorServer::handle_replace(const Packet& packet, door::DoorReply& reply) {
  const std::size_t count = packet.request.count;
  if (count > door::kMaxEntries / 2) return answer(reply, {door::Outcome::kBadRequest});
  int descriptors[door::kMaxEntries];
  const runtime::Ending ending =
      runtime::replace(packet.request.session, {packet.request.ids, count}, {reply.entries, count},
                       {descriptors, 2 * count});
  reply.count = ending.outcome == door::Outcome::kOk ? packet.request.count : 0;
  answer(reply, ending, descriptors, 2);
  runtime::close_loose();
}

void DoorServer::handle_watch_memory(door::DoorReply& reply) {
  int descriptor = -1;
  const runtime::Ending ending = runtime::open_userfaultfd(&descriptor);
  reply.count = ending.outcome == door::Outcome::kOk ? 1 : 0;
  answer(reply, ending, &descriptor);
  runtime::close_loose();
}

void DoorServer::handle_registered_memory(const door::DoorRequest& request,
                                          door::DoorReply& reply) {
  if (request.count != 1) return answer(reply, {door::Outcome::kBadRequest});
  reply.count = static_cast<std::uint32_t>(runtime::list_registered(request.ids[0], reply.entries));
  answer(reply, {});
}

/// Closes the gate and waits until all calls and all GPU work behind it have ended.
runtime::Ending drain(nanoseconds timeout, door::Obstacle* obstacle) {
  const auto deadline = Clock::now() + timeout;
  *obstacle = door::Obstacle::kCallsInFlight;
  if (!gate::close(timeout)) return {door::Outcome::kTimeout};
  return runtime::wait_until_idle(deadline - Clock::now(), obstacle);
}

nanoseconds timeout_of(const door::DoorRequest& request) {
  return std::min<nanoseconds>(std::chrono::microseconds(request.timeout_us), kLongestClose);
}

void DoorServer::handle_close_gate(const door::DoorRequest& request, door::DoorReply& reply) {
  if (runtime::is_detached()) return answer(reply, {});
  const runtime::Ending ending = drain(timeout_of(request), &reply.obstacle);
  lease_ = milliseconds(request.lease_ms);
  answer(reply, ending);
}

void DoorServer::handle_step(const door::DoorRequest& request, door::DoorReply& reply) {
  if (!gate::is_closed() || runtime::is_detached()) {
    return answer(reply, {door::Outcome::kBadRequest});
  }
  if (!gate::step()) return answer(reply, {door::Outcome::kNotFound});
  answer(reply, drain(timeout_of(request), &reply.obstacle));
}

void DoorServer::handle(Packet& packet) {
  request_start_ = Clock::now();
  const door::DoorRequest& request = packet.request;
  door::DoorReply reply{};
  reply.version = door::kVersion;
  reply.sequence = request.sequence;
  const door::Op op = packet.well_formed ? request.op : door::Op::kInvalid;
  if (op != door::Op::kOffer) {
    for (std::size_t i = 0; i < packet.descriptor_count; ++i) ::close(packet.descriptors[i]);
  }
  switch (op) {
    case door::Op::kHello:
      return handle_hello(reply);
    case door::Op::kInventory:
      return handle_inventory(reply);
    case door::Op::kExport:
      return handle_export(packet, reply);
    case door::Op::kCloseGate:
      return handle_close_gate(request, reply);
    case door::Op::kStep:
      return handle_step(request, reply);
    case door::Op::kDetach:
      return handle_detach(request, reply);
    case door::Op::kOffer:
      return answer(reply, runtime::offer({request.ids, request.count},
                                          {packet.descriptors, packet.descriptor_count}));
    case door::Op::kReplace:
      return handle_replace(packet, reply);
    case door::Op::kAttach:
      return answer(reply, runtime::attach());
    case door::Op::kOpenGate:
      if (runtime::is_detached()) return answer(reply, {door::Outcome::kBadRequest});
      gate::open();
      lease_ = nanoseconds(0);
      return answer(reply, {});
    case door::Op::kDropPages:
    case door::Op::kUseHugePages:
      return answer(reply, pages::advise(op, {request.ids, request.count}, &reply.advised_bytes));
    case door::Op::kWatchMemory:
      return handle_watch_memory(reply);
    case door::Op::kRegisteredMemory:
      return handle_registered_memory(request, reply);
    case door::Op::kInvalid:
      break;
  }
  answer(reply, {door::Outcome::kBadRequest});
}

}  // namespace

void serve_door(int door_fd) { DoorServer(door_fd).run(); }

}  // namespace gcr::preload
