// The content of one file, or of one memory, while its checkpoint is taken.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "proto/checkpoint.pb.h"
#include "store/writer.h"

namespace gcr::migration {

/// Maps offsets to pieces of stored contents; bytes that no piece covers are zeros. A content
/// without pieces is dropped. One thread at a time.
class Extents {
 public:
  /// `writer` outlives this object.
  explicit Extents(store::Writer& writer) : writer_(writer) {}

  /// Replaces what is at `offset` by the whole `content` of `bytes`. Takes over one use of it.
  void put(std::uint64_t offset, std::uint32_t bytes, store::ContentRef content);

  /// Replaces the bytes from `start` to `end` by zeros.
  void clear(std::uint64_t start, std::uint64_t end);

  /// Adds the pieces to `image`, ascending and disjoint, with the writer's content numbers.
  void describe(proto::StoredImage& image) const;

 private:
  struct Piece {
    std::uint32_t bytes;
    store::ContentRef content;
    std::uint32_t from;  ///< offset in the content
  };
  /// How often one content is used.
  struct Shown {
    std::uint32_t pieces = 0;
    std::uint32_t uses = 0;  ///< uses that the writer counts
  };

  void hide(store::ContentRef content);

  store::Writer& writer_;
  std::map<std::uint64_t, Piece> pieces_;
  std::unordered_map<store::ContentRef, Shown> shown_;
};

}  // namespace gcr::migration
