// What the ring computes, for the program, for the software GPU and for who checks the output.
//
// Ranks in a ring pass tokens. In every step each rank sends its token to its right, followed by a
// payload that is made of it, waits for the one of its left, and makes its next token of that.
// kernels.ptx has the same as gcr_ring_pass.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace gcr::apps {

inline constexpr std::uint64_t kRingHeaderWords = 2;

/// A rank's state in VRAM.
struct RingState {
  std::uint64_t step;
  std::uint64_t token;
  std::uint64_t sum;    ///< over all tokens that the rank has had
  std::uint64_t wrong;  ///< words that were not what they must be
};

/// The token that a rank begins with.
constexpr std::uint64_t ring_first_token(std::uint64_t rank) {
  return (rank + 1) * 0x9e3779b97f4a7c15;
}

/// A rank's next token, made of the one that came from its left.
constexpr std::uint64_t ring_token(std::uint64_t received, std::uint64_t rank) {
  return std::rotl(received, 7) * 0xd1342543de82ef95 + rank + 1;
}

constexpr std::uint64_t ring_sum(std::uint64_t sum, std::uint64_t token) {
  return sum * 6364136223846793005 + token;
}

/// A word of the payload that goes with a token.
constexpr std::uint64_t ring_word(std::uint64_t token, std::uint64_t index) {
  const std::uint64_t word = ((index + 1) * 0x9e3779b97f4a7c15) ^ token;
  return word ^ (word >> 29);
}

/// Over all ranks in their order: sums, which tell every token that there ever was.
constexpr std::uint64_t ring_digest(std::uint64_t digest, std::uint64_t sum) {
  return ring_sum(digest, sum);
}

/// "<step> <tokens that all ranks have passed on, by their count in shared memory> <digest, hex>"
inline std::string ring_line(std::uint64_t step, std::uint64_t passed, std::uint64_t digest) {
  char line[96];
  std::snprintf(line, sizeof(line), "%llu %llu %016llx", static_cast<unsigned long long>(step),
                static_cast<unsigned long long>(passed), static_cast<unsigned long long>(digest));
  return line;
}

/// The lines of an undisturbed run, one after the other.
class RingLines {
 public:
  RingLines(std::uint64_t ranks, std::uint64_t steps_per_line) : steps_per_line_(steps_per_line) {
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      tokens_.push_back(ring_first_token(rank));
      sums_.push_back(0);
    }
  }

  std::string next() {
    for (std::uint64_t i = 0; i < steps_per_line_; ++i) step();
    std::uint64_t digest = 0;
    for (const std::uint64_t sum : sums_) digest = ring_digest(digest, sum);
    return ring_line(step_, step_ * tokens_.size(), digest);
  }

 private:
  void step() {
    const std::vector<std::uint64_t> sent = tokens_;
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      const std::size_t left = (rank + sent.size() - 1) % sent.size();
      tokens_[rank] = ring_token(sent[left], rank);
      sums_[rank] = ring_sum(sums_[rank], tokens_[rank]);
    }
    ++step_;
  }

  std::uint64_t steps_per_line_;
  std::uint64_t step_ = 0;
  std::vector<std::uint64_t> tokens_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace gcr::apps
