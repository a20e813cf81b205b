// The mappings of a process, and which of them are plain memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/base/address_range.h"
#include "src/base/result.h"

namespace gcr::process {

/// One entry of /proc/PID/smaps.
struct MemoryMapping {
  AddressRange range;
  bool plain = false;            ///< private, anonymous, readable, writable, nothing special
  bool tracked = false;          ///< a userfaultfd protects pages in it against writes
  bool asynchronous_io = false;  ///< the kernel writes to memory on its own: io_submit, io_uring
  std::uint64_t anonymous_bytes = 0;
};

/// The mappings in the text of an smaps file, in the order of addresses; none if it is not one.
std::optional<std::vector<MemoryMapping>> parse_smaps(std::string_view text);

/// The mappings of a process now.
Result<std::vector<MemoryMapping>> read_mappings(pid_t pid);

}  // namespace gcr::process
