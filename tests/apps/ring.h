// The computation of the ring, for the program, for the software GPU and for the checkers of the
// output.
//
// Ranks in a ring pass tokens. In every step each rank sends its token to its right, followed by a
// payload computed from it, waits for the one of its left, and computes its next token from that.
// gcr_ring_pass in kernels.cu does the same. After every line each rank also sends its sum over a
// socket to its right, and adds up the values from its left.
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
  std::uint64_t sum;    ///< over all tokens that the rank has received
  std::uint64_t wrong;  ///< number of wrong words
};

/// The token that a rank begins with.
constexpr std::uint64_t ring_first_token(std::uint64_t rank) {
  return (rank + 1) * 0x9e3779b97f4a7c15;
}

/// A rank's next token, computed from the one of its left.
constexpr std::uint64_t ring_token(std::uint64_t received, std::uint64_t rank) {
  return std::rotl(received, 7) * 0xd1342543de82ef95 + rank + 1;
}

constexpr std::uint64_t ring_sum(std::uint64_t sum, std::uint64_t token) {
  return sum * 6364136223846793005 + token;
}

/// A word of the payload of a token.
constexpr std::uint64_t ring_word(std::uint64_t token, std::uint64_t index) {
  const std::uint64_t word = ((index + 1) * 0x9e3779b97f4a7c15) ^ token;
  return word ^ (word >> 29);
}

/// Over all ranks in their order: each one's value from its GPU, and its value from its socket.
class RingDigest {
 public:
  void add(std::uint64_t sum, std::uint64_t received) {
    value_ = ring_sum(ring_sum(value_, sum), received);
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

/// "<step> <number of tokens passed by all ranks, as counted in shared memory> <digest, hex>"
inline std::string ring_line(std::uint64_t step, std::uint64_t passed, std::uint64_t digest) {
  char line[96];
  std::snprintf(line, sizeof(line), "%llu %llu %016llx", static_cast<unsigned long long>(step),
                static_cast<unsigned long long>(passed), static_cast<unsigned long long>(digest));
  return line;
}

/// The lines of an undisturbed run, one after the other.
class RingLines {
 public:
  RingLines(std::uint64_t ranks, std::uint64_t steps_per_line)
      : steps_per_line_(steps_per_line), ranks_(ranks) {
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      ranks_[rank].token = ring_first_token(rank);
    }
  }

  std::string next() {
    for (std::uint64_t i = 0; i < steps_per_line_; ++i) step();
    RingDigest digest;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].received = ring_sum(ranks_[rank].received, ranks_[left_of(rank)].sum);
      digest.add(ranks_[rank].sum, ranks_[rank].received);
    }
    return ring_line(step_, step_ * ranks_.size(), digest.value());
  }

 private:
  struct Rank {
    std::uint64_t token = 0;
    std::uint64_t sum = 0;
    std::uint64_t received = 0;
  };

  std::size_t left_of(std::size_t rank) const { return (rank + ranks_.size() - 1) % ranks_.size(); }

  void step() {
    const std::vector<Rank> before = ranks_;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].token = ring_token(before[left_of(rank)].token, rank);
      ranks_[rank].sum = ring_sum(before[rank].sum, ranks_[rank].token);
    }
    ++step_;
  }

  std::uint64_t steps_per_line_;
  std::uint64_t step_ = 0;
  std::vector<Rank> ranks_;
};

}  // namespace gcr::apps
