// A rank of the ring: a process with a CUDA context, between two neighbours.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "tests/apps/ring.h"

namespace gcr::apps {

inline constexpr std::uint64_t kRingMaxRanks = 64;
/// Lines that ranks may work on at a time: a line starts before the one before it is printed.
inline constexpr std::uint64_t kRingAhead = 2;

struct RingOptions {
  unsigned ranks = 2;
  unsigned gpus = 0;
  std::uint64_t per_line = 8;
  double period_ms = 10;
  double skew_ms = 1;
  std::uint64_t words = 1024;
  std::uint64_t vram_bytes = 0;
  std::uint64_t piece_bytes = 64 << 20;
  bool host_memory = false;
  bool legacy_ipc = false;
  bool graph = false;
  bool tcp = false;
  std::string address = "127.0.0.1";
  int rank = -1;  ///< the parent: -1
};

/// Shared by parent and ranks.
struct RingPage {
  /// How many steps each rank has completed by the end of a line.
  std::atomic<std::uint64_t> passed[kRingMaxRanks][kRingAhead + 1];
  std::atomic<std::uint16_t> ports[kRingMaxRanks];  ///< where each rank listens
};

/// The descriptors that every rank starts with.
enum RingDescriptor : int {
  kRingOrders = 3,  ///< a pipe: the next step, in a word; end of file ends the rank
  kRingReports,     ///< a pipe to the parent
  kRingLeft,        ///< a Unix socket to the rank at the left
  kRingRight,
  kRingPage,
  kRingListener,  ///< with --tcp
  kRingDescriptors
};

/// A rank's message at the end of a line.
struct RingReport {
  std::uint64_t step = 0;
  std::uint64_t sum = 0;       ///< of its state in VRAM
  std::uint64_t received = 0;  ///< over the sums of the rank at its left
};

/// The whole life of a rank; its exit status. Prints errors in a line that begins with "error:".
int run_ring_rank(const RingOptions& options);

}  // namespace gcr::apps
