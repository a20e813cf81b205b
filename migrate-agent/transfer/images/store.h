// Receives images at the destination: blocks land in a ring, their pages go to files on tmpfs, and
// the files get their names when all blocks have come.
//
// The peer is not trusted: what lands may be anything, and may change while it is read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "migrate-agent/transfer/images/block.h"
#include "migrate-agent/transfer/images/image_digest.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::images {

class ImageStore {
 public:
  /// Requests room for at least this many bytes more; gives the room for all files now. One call at
  /// a time, from any thread.
  using MoreRoom = std::function<Result<std::uint64_t>(std::uint64_t bytes)>;

  /// Takes pages of a memory instead of a file; false if they are to go to the file. Pages of a
  /// window that were taken once must be taken again. Any number of threads.
  using PlaceMemory =
      std::function<Result<bool>(const BlockHeader& header, std::span<const std::byte> pages)>;

  /// For images in `directory`, an existing directory on tmpfs. `slots` blocks fit into the ring.
  /// `max_bytes` limits the pages of all files that may land, until `more_room`, if there is one,
  /// allows more. `secret` is the sender's.
  static Result<std::unique_ptr<ImageStore>> create(std::filesystem::path directory, unsigned slots,
                                                    std::uint64_t max_bytes,
                                                    const std::array<std::byte, 32>& secret = {},
                                                    MoreRoom more_room = {});

  using Memories = std::map<std::uint32_t, std::vector<std::string>>;

  /// Before anything lands.
  void place_memory(PlaceMemory place) { place_memory_ = std::move(place); }

  /// Where blocks land: a region for the transport. Lives as long as this object.
  std::span<std::byte> ring() const { return ring_.bytes(); }

  /// A write of `length_bytes` at `offset` of the ring is in place: takes its block. The
  /// transport's OnLanded; any number of threads. kProtocol if it is not a block,
  /// kResourceExhausted beyond the limit.
  Status landed(std::uint64_t offset, std::uint64_t length_bytes);

  /// When everything has landed: gives the files their names and sizes. Names are plain names that
  /// end in ".img". kProtocol for any other name, for one that comes twice, and for blocks of files
  /// that are not named; kDataLoss for a file that differs from what was sent. Once, when no
  /// landed() is under way. On failure the directory holds an unspecified part of the files.
  Status complete(const std::vector<ImageFile>& files);

  /// After complete(): the names of the files with pages of each memory, by its number.
  const Memories& memories() const { return memories_; }

 private:
  ImageStore(std::filesystem::path directory, UniqueFd incoming, UniqueMapping ring,
             std::uint64_t max_bytes, const std::array<std::byte, 32>& secret, MoreRoom more_room);
  Status make_room(const BlockHeader& header);
  Status take(const BlockHeader& header, std::span<const std::byte> pages);
  Status write_pages(const BlockHeader& header, std::span<const std::byte> pages);
  Status name_file(const ImageFile& file);

  const std::filesystem::path directory_;
  const UniqueFd incoming_;  ///< the directory of files that have no name yet
  const UniqueMapping ring_;
  const MoreRoom more_room_;
  PlaceMemory place_memory_;
  const WindowDigester digester_;
  std::mutex room_mutex_;
  std::uint64_t max_bytes_;         ///< guarded by room_mutex_
  std::uint64_t landed_bytes_ = 0;  ///< guarded by room_mutex_
  /// The pages of each window that have landed, by file and offset; guarded by room_mutex_.
  std::map<std::pair<std::uint32_t, std::uint64_t>, PresentPages> landed_pages_;
  std::mutex mutex_;
  struct File {
    ImageDigest digest;
    std::uint16_t memory = 0;
  };
  std::unordered_map<std::uint32_t, File> files_;  ///< by id; guarded by mutex_
  Memories memories_;
};

}  // namespace gcr::images
