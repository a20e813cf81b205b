// The mappings of a process, and which of them are plain memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/base/address_ranges.h"
#include "src/base/result.h"

namespace gcr::process {

/// A mapping, as in an entry of /proc/PID/smaps.
struct MemoryMapping {
  AddressRange range;
  bool anonymous = false;        ///< private and anonymous, nothing special
  bool plain = false;            ///< anonymous, readable and writable
  bool flagged = false;          ///< special by its flags alone, which /proc/PID/maps does not tell
  bool accounted = true;         ///< the kernel has promised that there will be memory for it
  bool tracked = false;          ///< a userfaultfd protects pages in it against writes
  bool asynchronous_io = false;  ///< the kernel writes to it on its own: io_submit, io_uring
  std::uint64_t anonymous_bytes = 0;  ///< that are there, at most
};

using MemoryMappings = std::vector<MemoryMapping>;  ///< in the order of addresses

/// The mappings in the text of an smaps file; none if it is not one.
std::optional<MemoryMappings> parse_smaps(std::string_view text);

/// The mappings of a process now. The kernel looks at each of its pages for that: 4 to 7 ms per
/// GiB.
Result<MemoryMappings> read_mappings(pid_t pid);

/// What is known of a process whose writes are tracked, from when it ran.
struct KnownMemory {
  MemoryMappings mappings;
  AddressRanges tracked;
};

/// The same at once: what /proc/PID/maps does not tell is taken as it was known.
Result<MemoryMappings> read_mappings(pid_t pid, const KnownMemory& known);

}  // namespace gcr::process
