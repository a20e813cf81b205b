// What the parts of gcr-in-criu.so (in_criu_main.cc) have for each other.
#pragma once

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "src/base/pagemap_scan.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace gcr::criu {

/// Receives one packet; the number of its bytes, or -1.
ssize_t receive(int fd, void* packet, std::size_t size);

/// An array that grows; false when there is no memory. Never freed: CRIU ends soon.
template <class Item>
class Growing {
 public:
  bool add(const Item& item) {
    if (size_ == room_) {
      const std::size_t more = room_ == 0 ? 4096 : 2 * room_;
      auto* const items = static_cast<Item*>(realloc(items_, more * sizeof(Item)));
      if (items == nullptr) return false;
      items_ = items;
      room_ = more;
    }
    items_[size_++] = item;
    return true;
  }
  void clear() { size_ = 0; }
  void drop_first(std::size_t count) {
    size_ -= count;
    memmove(items_, items_ + count, size_ * sizeof(Item));
  }
  Item& operator[](std::size_t i) { return items_[i]; }
  Item& last() { return items_[size_ - 1]; }
  std::size_t size() const { return size_; }
  const Item* begin() const { return items_; }
  const Item* end() const { return items_ + size_; }

 private:
  Item* items_ = nullptr;
  std::size_t size_ = 0;
  std::size_t room_ = 0;
};

// in_criu_left_out.cc: what is hidden from a dumping CRIU, because the agent sends it by itself
// (left_out_memory.h). CRIU learns which pages a task has from /proc/PID/pagemap, by PAGEMAP_SCAN
// or, on kernels before 6.7, by reading entries. Answers to both pass through here: what the agent
// sends is taken out of them, and the agent is told what was there. If anything goes wrong, the
// answer stays as it is: what both send is the same.

/// The PID, as CRIU sees it, of the process whose directory in /proc is open as `fd`, or whose file
/// of that `name` in there; 0 if it is another file.
int owner_of(int fd, const char* name = nullptr);

/// Asks the agent what it sends of this process, once, before CRIU looks at its mappings: the agent
/// may write to the process and give memory of it back, shared memory too, which CRIU dumps at
/// once. False if `pid` is 0, or the agent does not answer.
bool is_asked_about(int pid);

/// Whether the agent sends memory of the process whose pagemap is open as `fd`.
bool agent_sends(int fd);

/// Whether the agent sends the memory that processes share and that is open as `fd`.
bool is_sent_by_agent(int fd);

/// Takes what the agent sends out of the answer to a scan, which has `count` regions; gives the
/// number of those that remain.
long leave_out(const pagemap::ScanArguments& scan, long count);

/// The same for entries of a page map, one for each page from the page with this number on.
void leave_out(std::uint64_t* entries, std::size_t count, std::uint64_t first_page);

}  // namespace gcr::criu

// in_criu_names.cc: names that come from the processes that move. Their users decide what is under
// them, so a restoring CRIU must not use them as root.
namespace gcr::criu::names {

/// From now on this CRIU, which restores and is in the images directory, uses names with the rights
/// of members, as kMemberRights has them. CRIU itself, and what it forks that is no member, makes,
/// changes and removes nothing by name. If the file is missing or damaged, there are no members.
void restrict_to_members();

/// Before CRIU enters the mount namespace of a process: from now on it reads its cache of the
/// kernel's features as the agent has it, and writes none.
void keep_kernel_features();

/// The mode that an open with these flags has as its next argument; 0 if it has none.
inline mode_t mode_in(va_list rest, int flags) {
  const bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return creates ? va_arg(rest, mode_t) : 0;
}

/// openat(2) with these rights.
int open_at(int directory, const char* path, int flags, mode_t mode);

}  // namespace gcr::criu::names
