// Where the images of a dump go, while CRIU writes them, and the memory of its processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "migrate-agent/transfer/images/image_digest.h"
#include "src/base/address_ranges.h"
#include "src/base/read_memory.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "store/codec.h"

namespace gcr::images {

struct SentImages {
  std::vector<ImageFile> files;
  std::uint64_t raw_bytes = 0;     ///< as CRIU wrote them; of memory, what the last round read
  std::uint64_t memory_bytes = 0;  ///< of these, memory
  std::uint64_t zero_bytes = 0;    ///< of all, in pages of zeros
  std::uint64_t sent_bytes = 0;    ///< with headers
  store::Codec codec = store::Codec::kNone;  ///< that of most blocks
};

class Sink {
 public:
  virtual ~Sink() = default;

  /// Sends `content` from its current offset to its end. Returns when all of it is read; parts of
  /// it may not have landed yet. Thread-safe. After an error every later call fails with it.
  virtual Status take(const std::string& name, UniqueFd content) = 0;

  /// Sends `ranges` of a memory, whole pages, ascending and disjoint, as images "`name`-0.img" to
  /// at most "`name`-7.img": the destination writes several files faster than one. In all of them
  /// the address is the offset; what is in another one of them, what never was in the ranges and
  /// pages that always were zeros are holes at the destination. Reads several parts at once.
  /// Returns when all of it is read and `read` is not called any more; parts of it may not have
  /// landed yet. `name` begins as in block.h. An error of `read` is returned. kUnsupported
  /// for addresses of 2^47 and more. Otherwise like take().
  ///
  /// May be called again for the same name after finish(): sends those pages of `ranges` whose
  /// content is not what was sent last, zeros too; what is not in them stays as it was sent. Only a
  /// round that is not `last` remembers what it sends: 4 KiB for each MiB.
  virtual Status take_memory(const std::string& name, std::span<const AddressRange> ranges,
                             const ReadMemory& read, bool last) = 0;

  /// Returns when everything from take() and take_memory() is in place. Neither may be under way.
  /// May be called again after further files; counts and files are those of all calls.
  virtual Result<SentImages> finish() = 0;
};

/// Fills `window` from `fd` up to the end of the file; gives the number of bytes. `name` is for the
/// error.
Result<std::size_t> read_window(int fd, std::span<std::byte> window, const std::string& name);

}  // namespace gcr::images
