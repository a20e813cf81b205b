// Packs: files of contents, each up to 2 MiB, by name. A content's name is SHA-256 over the store's
// key and its bytes, so equal contents are written once, nobody without the key can tell whether a
// content is there, and whatever a pack claims to hold is proven when it is read.
//
//   byte  0  magic    "GCRPACK1"
//         8  reserved, zeros, to 4096
//      4096  contents, each at a multiple of 512
//       end  index: entries of 64 bytes, ascending by name:
//              0  name    32 bytes
//             32  offset  u64
//             40  stored  u32  bytes here
//             44  raw     u32  bytes of the content: 1 to 2 MiB
//             48  codec   u16  images::Codec; zeros to 64
//            then the last 64 bytes of the file:
//              0  magic    "GCRINDX1"
//              8  index    u64  its offset
//             16  entries  u64
//             24  SHA-256 of the index; zeros to 64
//
// All numbers are little-endian. A pack without its end was never finished, and is nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "migrate-agent/images/codec.h"
#include "migrate-agent/store/directory.h"
#include "src/base/result.h"
#include "src/base/units.h"

namespace gcr::store {

inline constexpr std::uint32_t kMaxContentBytes = 2 * kMiB;

using Key = std::array<std::byte, 32>;
using ContentName = std::array<std::byte, 32>;

/// Any thread.
ContentName name_of(const Key& key, std::span<const std::byte> bytes);

/// Where a content lies.
struct Location {
  std::uint32_t pack = 0;  ///< the caller's number for the pack
  std::uint64_t offset = 0;
  std::uint32_t stored_bytes = 0;
  std::uint32_t raw_bytes = 0;
  images::Codec codec = images::Codec::kNone;
};

/// All finished packs of a directory. Thread-safe.
class Packs {
 public:
  /// Opens them and reads their indexes; a pack that is damaged or not finished is left out, with a
  /// warning.
  static Result<std::unique_ptr<Packs>> open(const Directory& directory);

  std::optional<Location> find(const ContentName& name) const;

  /// Reads a content of exactly out.size() bytes, and proves it by its name. kNotFound, kDataLoss,
  /// kIo.
  Status read(const Key& key, const ContentName& name, std::span<std::byte> out) const;

  struct Pack {
    std::string file_name;  ///< "packs/ID-N.pack"
    std::uint64_t file_bytes = 0;
    std::vector<ContentName> names;
  };
  const std::vector<Pack>& packs() const { return packs_; }

 private:
  Packs() = default;

  std::vector<Pack> packs_;
  std::vector<UniqueFd> files_;
  std::map<ContentName, Location> index_;
};

/// One pack that is being written. Thread-safe; calls from several threads wait for each other.
class PackWriter {
 public:
  static Result<std::unique_ptr<PackWriter>> create(const Directory& directory,
                                                    const std::string& file_name);

  /// Writes `stored`. It need not be durable before finish().
  Result<Location> add(const ContentName& name, std::span<const std::byte> stored,
                       std::uint32_t raw_bytes, images::Codec codec);

  /// Its place may be used again.
  void remove(const ContentName& name);

  /// Reads a content that was added here, as Packs::read does.
  Status read(const Location& location, std::span<std::byte> stored) const;

  /// Writes the index, and waits until all is on disk. Nothing is added afterwards.
  Status finish();

  std::uint64_t live_bytes() const;  ///< of contents that were not removed

 private:
  PackWriter(UniqueFd file) : file_(std::move(file)) {}

  const UniqueFd file_;
  mutable std::mutex mutex_;
  std::map<ContentName, Location> index_;
  std::multimap<std::uint64_t, std::uint64_t> free_;  ///< places by size: where they begin
  std::uint64_t end_ = 4096;
};

}  // namespace gcr::store
