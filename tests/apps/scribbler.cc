#include "tests/apps/scribbler.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/base/units.h"

namespace gcr::apps {
namespace {

constexpr std::array<std::uint64_t, 6> kSizesMib{32, 2, 64, 6, 128, 16};
constexpr std::uint64_t kThreadsPerPiece = 256;  // one block of Gpu::launch

/// Word `index` of a piece: kernels.cu.
std::uint64_t word_of(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t word = ((index + 1) * 0x9e3779b97f4a7c15) ^ seed;
  return seed == 0 ? 0 : word ^ (word >> 29);
}

}  // namespace

Scribbler::Scribbler(const Gpu& gpu, const ScribblerOptions& options)
    : gpu_(gpu),
      options_(options),
      random_(options.seed),
      table_(gpu.allocate(options.vram_bytes / options.piece_bytes * sizeof(Piece))),
      result_(gpu.allocate(2 * sizeof(std::uint64_t))) {
  for (std::size_t i = 0; bytes_ < options_.vram_bytes; ++i) {
    allocate(std::min(kSizesMib[i % kSizesMib.size()] * kMiB, options_.vram_bytes - bytes_));
  }
  shuffle();
}

std::uint64_t Scribbler::rewrite(std::uint64_t count) {
  const std::vector<Piece*> chosen = choose(count);
  std::vector<Piece> pieces;
  for (const Piece* piece : chosen) pieces.push_back(*piece);
  const std::uint64_t sum = check(pieces);
  for (std::size_t i = 0; i < chosen.size(); ++i) pieces[i].seed = chosen[i]->seed = new_seed();
  write(pieces);
  return sum;
}

std::uint64_t Scribbler::check_all() {
  std::vector<Piece> pieces;
  for (const Buffer& buffer : buffers_) {
    pieces.insert(pieces.end(), buffer.pieces.begin(), buffer.pieces.end());
  }
  return check(pieces);
}

void Scribbler::replace_buffer() {
  const auto victim = buffers_.begin() + static_cast<std::ptrdiff_t>(below(buffers_.size()));
  check(victim->pieces);
  gpu_.check(gpu_.driver().free(victim->address), "free VRAM");
  bytes_ -= victim->bytes;
  piece_count_ -= victim->pieces.size();
  buffers_.erase(victim);
  const std::uint64_t room_mib = (options_.vram_bytes - bytes_) / kMiB;
  allocate(2 * kMiB * (1 + below(std::min<std::uint64_t>(room_mib, 64) / 2)));
  shuffle();
}

std::uint64_t Scribbler::new_seed() {
  constexpr double kRange = 1U << 20;
  if (static_cast<double>(random_() >> 44) < options_.zeros * kRange) return 0;
  return std::max<std::uint64_t>(random_(), 1);
}

void Scribbler::allocate(std::uint64_t bytes) {
  Buffer& buffer = buffers_.emplace_back(Buffer{gpu_.allocate(bytes), bytes, {}});
  for (std::uint64_t at = 0; at < bytes; at += options_.piece_bytes) {
    buffer.pieces.push_back({buffer.address + at, options_.piece_bytes / 8, new_seed()});
  }
  bytes_ += bytes;
  piece_count_ += buffer.pieces.size();
  write(buffer.pieces);
}

/// A new turn for all pieces, in a new order. Called after each change of the buffers.
void Scribbler::shuffle() {
  turn_.clear();
  for (Buffer& buffer : buffers_) {
    for (Piece& piece : buffer.pieces) turn_.push_back(&piece);
  }
  for (std::size_t i = turn_.size(); i > 1; --i) std::swap(turn_[i - 1], turn_[below(i)]);
}

/// Fewer at the end of a turn: no piece twice.
std::vector<Scribbler::Piece*> Scribbler::choose(std::uint64_t count) {
  if (turn_.empty()) shuffle();
  count = std::min<std::uint64_t>(count, turn_.size());
  std::vector<Piece*> chosen(turn_.end() - static_cast<std::ptrdiff_t>(count), turn_.end());
  turn_.resize(turn_.size() - count);
  return chosen;
}

std::uint64_t Scribbler::check(const std::vector<Piece>& pieces) {
  if (pieces.empty()) return 0;
  upload(pieces);
  gpu_.write_word(result_, 0);
  gpu_.write_word(result_ + 8, 0);
  gpu_.launch("gcr_scribble_check", {table_, pieces.size(), result_},
              pieces.size() * kThreadsPerPiece);
  gpu_.synchronize();
  const std::uint64_t wrong = gpu_.read_word(result_);
  if (wrong != 0) fail("go on", std::to_string(wrong) + " words of VRAM are not what they must be");
  return gpu_.read_word(result_ + 8);
}

void Scribbler::write(const std::vector<Piece>& pieces) {
  if (pieces.empty()) return;
  if (options_.by_copy) {
    for (const Piece& piece : pieces) copy_from_host(piece);
    return;
  }
  upload(pieces);
  gpu_.launch("gcr_scribble", {table_, pieces.size()}, pieces.size() * kThreadsPerPiece);
  gpu_.synchronize();
}

void Scribbler::copy_from_host(const Piece& piece) {
  std::vector<std::uint64_t> words(piece.words);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word_of(piece.seed, i);
  gpu_.check(gpu_.driver().copy_to_device(piece.address, words.data(), words.size() * 8),
             "copy to VRAM");
}

void Scribbler::upload(const std::vector<Piece>& pieces) {
  gpu_.check(gpu_.driver().copy_to_device(table_, pieces.data(), pieces.size() * sizeof(Piece)),
             "copy the table to VRAM");
}

}  // namespace gcr::apps
