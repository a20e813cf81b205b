#include "migrate-agent/criu/memory/left_out_memory.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/address_ranges.h"

namespace gcr::criu {
namespace {

using launch::MemoryMessage;

/// The conversation with one CRIU.
class MemoryServer {
 public:
  MemoryServer(int socket, pid_t root, const std::atomic<SeparateMemory*>& asked)
      : socket_(socket), root_(root), asked_(asked) {}

  /// Until CRIU has closed its end.
  Result<LeftOutMemory::Tasks> run() {
    std::vector<std::byte> packet(sizeof(MemoryMessage) +
                                  launch::kRangesPerPacket * sizeof(AddressRange));
    for (;;) {
      const ssize_t got = ::recv(socket_, packet.data(), packet.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0)
        return Error::from_errno(errno, "cannot receive from CRIU which memory it leaves out");
      if (got == 0) break;
      GCR_TRY(hear(std::span(packet).first(static_cast<std::size_t>(got))));
    }
    for (auto& [inner, task] : tasks_) {
      std::ranges::sort(task.ranges, {}, &AddressRange::start);
      task.ranges = united(task.ranges, {});  // a scan may be made twice
    }
    return std::move(tasks_);
  }

 private:
  Status hear(std::span<const std::byte> packet) {
    MemoryMessage message{};
    if (packet.size() < sizeof(message)) return wrong();
    std::memcpy(&message, packet.data(), sizeof(message));
    const auto rest = packet.subspan(sizeof(message));
    if (rest.size() != message.count * sizeof(AddressRange)) return wrong();
    if (message.count == 0) return answer(message.pid);
    const auto task = tasks_.find(message.pid);
    if (task == tasks_.end()) return wrong();
    std::vector<AddressRange>& ranges = task->second.ranges;
    const std::size_t before = ranges.size();
    ranges.resize(before + message.count);
    std::memcpy(ranges.data() + before, rest.data(), rest.size());
    return {};
  }

  Status answer(pid_t inner) {
    LeftOut left_out;
    SeparateMemory* const memory = asked_;
    const pid_t pid = memory == nullptr ? 0 : find(inner);
    if (pid != 0) {
      tasks_[inner].pid = pid;
      left_out = memory->choose(pid);
    }
    GCR_TRY(tell(left_out.ranges));
    return tell(left_out.shared);
  }

  template <class Item>
  Status tell(const std::vector<Item>& items) const {
    for (std::size_t first = 0;; first += launch::kRangesPerPacket) {
      const std::size_t count = std::min(items.size() - first, launch::kRangesPerPacket);
      const std::size_t bytes = count * sizeof(Item);
      if (::send(socket_, items.data() + first, bytes, MSG_NOSIGNAL) !=
          static_cast<ssize_t>(bytes)) {
        return Error::from_errno(errno, "cannot tell CRIU what to leave out");
      }
      if (count < launch::kRangesPerPacket) return {};
    }
  }

  /// CRIU asks when the whole tree is stopped; before, about itself alone.
  pid_t find(pid_t inner) {
    if (!ours_.contains(inner)) ours_ = procfs::stopped_tree_in_namespace(root_);
    const auto found = ours_.find(inner);
    if (found != ours_.end()) return found->second;
    ours_.clear();
    return 0;
  }

  static Error wrong() {
    return Error(Code::kInternal,
                 "CRIU sent a malformed message about the memory that it leaves out");
  }

  const int socket_;
  const pid_t root_;
  const std::atomic<SeparateMemory*>& asked_;
  std::map<pid_t, pid_t> ours_;  ///< by PID in the namespace
  LeftOutMemory::Tasks tasks_;
};

}  // namespace

Result<LeftOutMemory> LeftOutMemory::serve(pid_t root) {
  GCR_ASSIGN(SocketPair sockets, SocketPair::create("CRIU"));
  const int socket = sockets.ours.get();
  LeftOutMemory memory(std::move(sockets));
  memory.served_ = std::async(std::launch::async, [socket, root, asked = memory.asked_] {
    auto tasks = MemoryServer(socket, root, *asked).run();
    ::shutdown(socket, SHUT_RDWR);  // a CRIU that asks again dumps everything itself
    return tasks;
  });
  return memory;
}

LeftOutMemory::~LeftOutMemory() {
  if (sockets_.ours) ::shutdown(sockets_.ours.get(), SHUT_RDWR);
  if (served_.valid()) served_.wait();
}

}  // namespace gcr::criu
