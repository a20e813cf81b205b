// What a checkpoint has of one file, or of one memory, while it is being taken.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "proto/checkpoint.pb.h"
#include "store/writer.h"

namespace gcr::migration {

/// Pieces of contents by their offset; what none covers is zeros. A content that no piece shows any
/// more is dropped. One thread at a time.
class Extents {
 public:
  /// `writer` outlives this object.
  explicit Extents(store::Writer& writer) : writer_(writer) {}

  /// `content`, all of whose `bytes` belong at `offset`, replaces what is there. Takes over one use
  /// of it.
  void put(std::uint64_t offset, std::uint32_t bytes, store::ContentRef content);

  /// From `start` to `end` there are zeros.
  void clear(std::uint64_t start, std::uint64_t end);

  /// Ascending and disjoint; contents are the writer's.
  void describe(proto::StoredImage& image) const;

 private:
  struct Piece {
    std::uint32_t bytes;
    store::ContentRef content;
    std::uint32_t from;  ///< in the content
  };
  /// Of one content.
  struct Shown {
    std::uint32_t pieces = 0;
    std::uint32_t uses = 0;  ///< that are the writer's
  };

  void hide(store::ContentRef content);

  store::Writer& writer_;
  std::map<std::uint64_t, Piece> pieces_;
  std::unordered_map<store::ContentRef, Shown> shown_;
};

}  // namespace gcr::migration
