// The bytes of a journal file. A file is kFileBytes long from the start and never grows, so that
// a full disk is noticed when it is created. It is a row of slots of kSlotBytes, the block of disks
// and file systems: writing a slot never rewrites a block that holds an earlier record.
//
//   slot 0      the header:   byte  0  magic    "GCRJRNL" and a line feed
//                                   8  version  u32, 1
//                                  12  zeros
//   slot 1 ...  one record each:
//                             byte  0  begin    'R'
//                                   1  zero
//                                   2  length   u16, of the body
//                                   4  checksum CRC-32 of this slot with the checksum of the slot
//                                               before in this place (of the header: the CRC-32 of
//                                               all its bytes)
//                                   8  body     a serialised gcr.journal.Record, then zeros
//                                4095  end      a line feed
//   all others  zeros: free
//
// All numbers are little-endian. The chain of checksums finds slots that were swapped, repeated or
// taken from another file. `begin` and `end` tell a record that was never completely written (one
// of them is still zero: a crash during the write; nobody acted on it) from a complete one that is
// damaged now. Only the last record can be incomplete, since each is on the disk before the next is
// written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::journal {

inline constexpr std::size_t kSlotBytes = 4096;
inline constexpr std::size_t kSlots = 32;
inline constexpr std::size_t kFileBytes = kSlots * kSlotBytes;

using Checksum = std::uint32_t;
using Slot = std::array<std::byte, kSlotBytes>;

/// A slot as it is to be written, and what the next one is chained to.
struct Sealed {
  Slot slot{};
  Checksum checksum = 0;
};

/// What lies in a file's bytes.
struct Contents {
  std::vector<Record> records;  ///< those before the first bad one
  bool torn = false;            ///< an incomplete last record was left out
  std::optional<Error> damage;  ///< kDataLoss, with the offset: bytes that no crash leaves behind
  Checksum checksum = 0;        ///< of the last good slot
};

/// The first slot of every journal.
Sealed header();

/// kInvalidArgument if the record has no body or is too long.
Result<Sealed> seal(const Record& record, Checksum previous);

/// The intact records of a damaged file, each chained to the checksum that the slot before it
/// states. In their order; what was between them is lost.
std::vector<Record> salvage(std::span<const std::byte> file);

/// The bytes of a file with these records, as they are. kInvalidArgument as seal(), or if there are
/// too many.
Result<std::vector<std::byte>> assemble(std::span<const Record> records);

/// Parses the bytes of a file, which may be anything. The first record of good contents is the only
/// Began, with a role and an id of 16 bytes.
Contents parse(std::span<const std::byte> file);

}  // namespace gcr::journal
