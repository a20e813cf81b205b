#include "migrate-agent/migration/target/store/extents.h"

#include <iterator>

namespace gcr::migration {

void Extents::put(std::uint64_t offset, std::uint32_t bytes, store::ContentRef content) {
  Shown& shown = shown_[content];
  ++shown.pieces;
  ++shown.uses;
  clear(offset, offset + bytes);
  pieces_.emplace(offset, Piece{bytes, content, 0});
}

void Extents::clear(std::uint64_t start, std::uint64_t end) {
  auto at = pieces_.lower_bound(start);
  if (at != pieces_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second.bytes > start) at = before;
  }
  while (at != pieces_.end() && at->first < end) {
    const auto [offset, piece] = *at;
    const std::uint64_t piece_end = offset + piece.bytes;
    at = pieces_.erase(at);
    if (offset < start) {
      pieces_.emplace(offset,
                      Piece{static_cast<std::uint32_t>(start - offset), piece.content, piece.from});
      ++shown_[piece.content].pieces;
    }
    if (piece_end > end) {
      const auto cut = static_cast<std::uint32_t>(end - offset);
      pieces_.emplace(
          end, Piece{static_cast<std::uint32_t>(piece_end - end), piece.content, piece.from + cut});
      ++shown_[piece.content].pieces;
    }
    hide(piece.content);
  }
}

void Extents::hide(store::ContentRef content) {
  const auto found = shown_.find(content);
  if (--found->second.pieces > 0) return;
  for (; found->second.uses > 0; --found->second.uses) writer_.drop(content);
  shown_.erase(found);
}

void Extents::describe(proto::StoredImage& image) const {
  for (const auto& [offset, piece] : pieces_) {
    proto::Extent& extent = *image.add_extents();
    extent.set_offset(offset);
    extent.set_bytes(piece.bytes);
    extent.set_content(piece.content);
    extent.set_from(piece.from);
  }
}

}  // namespace gcr::migration
