// The layout of a journal file. A file has kFileBytes from the start and never grows, so that a
// full disk is noticed when the file is created. It is a row of slots of kSlotBytes, the block size
// of disks and file systems: writing a slot never rewrites a block that holds an earlier record.
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
// All numbers are little-endian. The chain of checksums detects slots that were swapped, repeated
// or taken from another file. `begin` and `end` distinguish an incomplete record from a complete
// one that was damaged later: in an incomplete record one of them is still zero, because the host
// crashed during the write and no process has acted on it. Only the last record can be incomplete,
// since each is on disk before the next is written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::journal {

inline constexpr std::size_t kSlotBytes = 4096;
inline constexpr std::size_t kSlots = 32;
inline constexpr std::size_t kFileBytes = kSlots * kSlotBytes;

using Checksum = std::uint32_t;
using Slot = std::array<std::byte, kSlotBytes>;

/// A slot ready to be written, and its checksum, to which the next slot is chained.
struct Sealed {
  Slot slot{};
  Checksum checksum = 0;
};

/// The result of parsing a file.
struct Contents {
  std::vector<Record> records;  ///< the valid records before the first bad one
  bool torn = false;            ///< an incomplete last record was omitted
  std::optional<Error> damage;  ///< kDataLoss, with the offset: content that no crash can leave
  Checksum checksum = 0;        ///< of the last valid slot
};

/// Returns the header, the first slot of every journal.
Sealed header();

/// Encodes `record` into a slot that is chained to `previous`. kInvalidArgument if the record has
/// no body or is too long.
Result<Sealed> seal(const Record& record, Checksum previous);

/// Returns the intact records of a damaged file in their order: those that are chained to the
/// checksum in the slot before. Records between them are lost.
std::vector<Record> salvage(std::span<const std::byte> file);

/// Returns the content of a file with these records. kInvalidArgument if a record cannot be sealed
/// or there are too many.
Result<std::vector<std::byte>> assemble(std::span<const Record> records);

/// Parses any bytes as a journal file. If there is no damage, the first record is the only Began
/// and has a valid role and a migration id of 16 bytes.
Contents parse(std::span<const std::byte> file);

}  // namespace gcr::journal
