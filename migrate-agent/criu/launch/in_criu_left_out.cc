#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "migrate-agent/criu/launch/in_criu.h"
#include "migrate-agent/criu/launch/launch.h"

namespace gcr::criu {
namespace {

using launch::kMemoryFd;
using launch::kRangesPerPacket;
using launch::MemoryMessage;
using launch::SharedMemoryId;
using PageRegion = pagemap::Region;

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kPresentOrSwapped = pagemap::kIsPresent | pagemap::kIsSwapped;

int asked_about = 0;             ///< the process whose memory `agents` is of
Growing<AddressRange> agents;    ///< what the agent sends by itself, ascending
Growing<SharedMemoryId> shared;  ///< the same, of all processes
Growing<AddressRange> left_out;  ///< of one scan
Growing<PageRegion> left_to_criu;

template <class Item>
bool hear(Growing<Item>& items) {
  for (;;) {
    static Item packet[kRangesPerPacket];
    const ssize_t got = receive(kMemoryFd, packet, sizeof(packet));
    if (got < 0 || got % sizeof(Item) != 0) return false;
    const std::size_t count = static_cast<std::size_t>(got) / sizeof(Item);
    for (std::size_t i = 0; i < count; ++i) {
      if (!items.add(packet[i])) return false;
    }
    if (count < kRangesPerPacket) return true;
  }
}

/// Learns from the agent what it sends of this process, and of memory that processes share.
bool ask_about(int pid) {
  asked_about = 0;
  agents.clear();
  const MemoryMessage question{pid, 0};
  if (send(kMemoryFd, &question, sizeof(question), MSG_NOSIGNAL) != sizeof(question)) return false;
  Growing<SharedMemoryId> told;
  if (!hear(agents) || !hear(told)) return false;
  // CRIU is no process of the job, and asks about itself too.
  if (told.size() != 0) shared = told;
  asked_about = pid;
  return true;
}

bool tell_left_out(int pid) {
  for (std::size_t first = 0; first < left_out.size();) {
    const std::size_t rest = left_out.size() - first;
    const std::size_t count = rest < kRangesPerPacket ? rest : kRangesPerPacket;
    MemoryMessage message{pid, static_cast<std::uint32_t>(count)};
    iovec parts[] = {
        {&message, sizeof(message)},
        {const_cast<AddressRange*>(left_out.begin() + first), count * sizeof(AddressRange)}};
    msghdr packet{};
    packet.msg_iov = parts;
    packet.msg_iovlen = 2;
    if (sendmsg(kMemoryFd, &packet, MSG_NOSIGNAL) < 0) return false;
    first += count;
  }
  return true;
}

/// The first of the agent's ranges that ends behind `address`.
const AddressRange* first_beyond(std::uint64_t address) {
  return std::upper_bound(agents.begin(), agents.end(), address,
                          [](std::uint64_t at, const AddressRange& one) { return at < one.end; });
}

/// Divides a region between the agent and CRIU.
bool divide(const PageRegion& region) {
  std::uint64_t at = region.start;
  if ((region.categories & kPresentOrSwapped) != 0 &&
      (region.categories & pagemap::kIsGuard) == 0) {
    for (const AddressRange* range = first_beyond(at);
         range != agents.end() && range->start < region.end; ++range) {
      if (range->start > at && !left_to_criu.add({at, range->start, region.categories})) {
        return false;
      }
      const std::uint64_t start = range->start > at ? range->start : at;
      at = range->end < region.end ? range->end : region.end;
      if (!left_out.add({start, at})) return false;
    }
  }
  return at == region.end || left_to_criu.add({at, region.end, region.categories});
}

}  // namespace

ssize_t receive(int fd, void* packet, std::size_t size) {
  ssize_t got = 0;
  while ((got = recv(fd, packet, size, 0)) < 0 && errno == EINTR) {
  }
  return got;
}

int owner_of(int fd, const char* name) {
  char link[32];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  char path[64];
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length <= 0) return 0;
  path[length] = '\0';
  char* last = strrchr(path, '/');
  if (name != nullptr) {
    if (last == nullptr || strcmp(last + 1, name) != 0) return 0;
    *last = '\0';
    last = strrchr(path, '/');
  }
  return last == nullptr ? 0 : atoi(last + 1);
}

bool is_asked_about(int pid) { return pid != 0 && (pid == asked_about || ask_about(pid)); }

bool agent_sends(int fd) { return is_asked_about(owner_of(fd, "pagemap")) && agents.size() != 0; }

bool is_sent_by_agent(int fd) {
  struct stat file;
  if (shared.size() == 0 || fstat(fd, &file) != 0) return false;
  for (const SharedMemoryId& one : shared) {
    if (one.device == file.st_dev && one.inode == file.st_ino) return true;
  }
  return false;
}

long leave_out(const pagemap::ScanArguments& scan, long count) {
  auto* const regions = reinterpret_cast<PageRegion*>(scan.vec);
  left_out.clear();
  left_to_criu.clear();
  for (long i = 0; i < count; ++i) {
    if (!divide(regions[i])) return count;
  }
  if (left_out.size() == 0 || left_to_criu.size() > scan.vec_len || !tell_left_out(asked_about)) {
    return count;
  }
  if (left_to_criu.size() != 0) {
    memcpy(regions, left_to_criu.begin(), left_to_criu.size() * sizeof(PageRegion));
  }
  return static_cast<long>(left_to_criu.size());
}

void leave_out(std::uint64_t* entries, std::size_t count, std::uint64_t first_page) {
  constexpr std::uint64_t kThere = pagemap::kEntryPresent | pagemap::kEntrySwapped;
  const std::uint64_t address = first_page * kPageBytes;
  const std::uint64_t end = address + count * kPageBytes;
  left_out.clear();
  for (const AddressRange* range = first_beyond(address);
       range != agents.end() && range->start < end; ++range) {
    std::uint64_t at = range->start > address ? range->start : address;
    for (; at < range->end && at < end; at += kPageBytes) {
      if ((entries[(at - address) / kPageBytes] & kThere) == 0) continue;
      if (left_out.size() != 0 && left_out.last().end == at) {
        left_out.last().end += kPageBytes;
      } else if (!left_out.add({at, at + kPageBytes})) {
        return;
      }
    }
  }
  if (left_out.size() == 0 || !tell_left_out(asked_about)) return;
  for (const AddressRange& range : left_out) {
    const std::uint64_t first = (range.start - address) / kPageBytes;
    memset(entries + first, 0, range.bytes() / kPageBytes * sizeof(*entries));
  }
}

}  // namespace gcr::criu
