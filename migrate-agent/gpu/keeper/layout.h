// What gcr-keeper's descriptors are, and what it says, for the program and for those who use it.
//
// Descriptor 3 is its socket (SOCK_SEQPACKET), 4 is /dev/null until it is armed, then the table: a
// sealed memfd with a TableHeader and, after it, who maps the buffers: a member's own number for
// each (u64), then the member of each (u32; a table that ends before them is of one process). The
// descriptors begin at kFirstBufferFd in the same order. Making 4 the table is the last step, so a
// reader that finds it there finds all of them.
//
// The keeper says kReady. Then come packets of one byte with at most kMaxPassedDescriptors
// descriptors by SCM_RIGHTS: the table alone in the first, the buffers in those after it. The
// keeper answers kArmed to the last of them, or kFailed and ends with its socket. All on one host:
// host byte order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gcr::keeper::layout {

inline constexpr int kSocketFd = 3;
inline constexpr int kTableFd = 4;
inline constexpr int kReceivedTableFd = 5;
inline constexpr int kFirstBufferFd = 6;

inline constexpr std::uint64_t kMagic = 0x3152504b52434743;  // "CGCRKPR1" read as little-endian

struct TableHeader {
  std::uint64_t magic;
  std::uint32_t count;
  std::uint32_t reserved;
};
static_assert(sizeof(TableHeader) == 16);

/// Zero is never used.
enum class Event : std::uint32_t { kInvalid = 0, kReady = 1, kArmed = 2, kFailed = 3 };

struct Report {
  Event event;
  std::int32_t error;  ///< errno of a failure
};
static_assert(sizeof(Report) == 8);

}  // namespace gcr::keeper::layout
