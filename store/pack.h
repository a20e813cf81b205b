// Packs: files of contents, each up to 2 MiB, by name. A content's name is SHA-256 over the store's
// key and its bytes. So equal contents are written once; without the key, the presence of a content
// cannot be tested; and each content is verified when it is read.
//
//   byte  0  magic    "GCRPACK1"
//         8  reserved, zeros, to 4096
//      4096  contents, each at a multiple of 512
//       end  index: at most 4 Mi entries of 64 bytes, ascending by name:
//              0  name    32 bytes
//             32  offset  u64
//             40  stored  u32  bytes in the pack
//             44  raw     u32  bytes of the content: 1 to 2 MiB
//             48  codec   u16  store::Codec; zeros to 64
//            then the last 64 bytes of the file:
//              0  magic    "GCRINDX1"
//              8  index    u64  its offset
//             16  entries  u64
//             24  SHA-256 of the index; zeros to 64
//
// All numbers are little-endian. The end is written when all contents are on disk; a pack without
// it was never finished and is ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "store/directory.h"
#include "store/free_places.h"
#include "store/pack_format.h"

namespace gcr::store {

/// All finished packs of a directory. Thread-safe. The files stay open, so that a pack can still be
/// read after its removal.
class Packs {
 public:
  /// Opens all packs and reads their indexes; skips and logs a pack that is damaged or not
  /// finished.
  static Result<std::unique_ptr<Packs>> open(const Directory& directory);

  /// Reads a content of exactly out.size() bytes, and verifies it by its name. If several packs
  /// have it, one good copy is enough. kNotFound, kDataLoss, kIo.
  Status read(const Key& key, const ContentName& name, std::span<std::byte> out) const;

  /// Reads and verifies a content at one location. Fails as read().
  Status read_at(const Key& key, const ContentName& name, const Location& location,
                 std::span<std::byte> out) const;

  /// Reads the stored form of a content, location.stored_bytes bytes, without verifying it.
  Status read_stored(const Location& location, std::span<std::byte> stored) const;

  struct Pack {
    std::string file_name;  ///< "packs/ID-N.pack"
    std::uint64_t file_bytes = 0;
    std::vector<IndexEntry> index;  ///< ascending by name; Location::pack is the index in packs()
    UniqueFd file;
  };
  const std::vector<Pack>& packs() const { return packs_; }

  /// Files in packs/ that are not finished packs.
  const std::vector<std::string>& others() const { return others_; }

 private:
  Packs() = default;

  static Result<std::unique_ptr<Packs>> try_to_open(const Directory& directory);
  Result<std::size_t> add(const Directory& directory, const std::string& file_name);

  std::vector<Pack> packs_;
  std::vector<std::string> others_;
};

/// One pack that is being written. If the file system supports it, the file has no name until it is
/// finished, so it cannot be read before and is deleted if the writer dies. Thread-safe; several
/// threads may write concurrently.
class PackWriter {
 public:
  /// `directory` must outlive it.
  static Result<std::unique_ptr<PackWriter>> create(const Directory& directory,
                                                    const std::string& file_name);

  /// Writes `stored` under `name`, which the pack must not have yet. It is durable only after
  /// finish(). After an error its place is free again. kResourceExhausted on a full disk.
  Result<Location> add(const ContentName& name, std::span<const std::byte> stored,
                       std::uint32_t raw_bytes, Codec codec);

  /// Removes a content; its place may be reused.
  void remove(const ContentName& name);

  /// Writes the index, waits until everything is on disk, and gives the file its name, which a sync
  /// of the directory makes durable. No content may be added afterwards.
  Status finish();

  const std::string& file_name() const { return file_name_; }
  std::uint64_t live_bytes() const;  ///< of contents that were not removed

 private:
  PackWriter(const Directory& directory, std::string file_name, UniqueFd file, bool is_unnamed)
      : directory_(directory),
        file_name_(std::move(file_name)),
        file_(std::move(file)),
        is_unnamed_(is_unnamed) {}

  Error failed(int error) const;
  void begin_writeback(std::uint64_t written);

  const Directory& directory_;
  const std::string file_name_;
  const UniqueFd file_;
  const bool is_unnamed_;  ///< the file has no name until finish()
  mutable std::mutex mutex_;
  std::map<ContentName, Location> index_;
  FreePlaces places_{kPackHeaderBytes};
  std::uint64_t live_bytes_ = 0;
  std::uint64_t unannounced_ = 0;  ///< bytes written since writeback was last started
};

/// "packs/ID-N.pack"
std::string pack_file_of(const Uuid& checkpoint, unsigned number);
/// The checkpoint for which a pack was written, from its file name; nullopt if that is no pack's
/// name.
std::optional<Uuid> writer_of_pack(std::string_view file_name);

}  // namespace gcr::store
