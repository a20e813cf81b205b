// How long the steps of a downtime take that do not depend on how much VRAM is left to send,
// learned from this agent's earlier migrations. The file STATE_DIR/downtimes has the last few per
// kind of program.
//
// A downtime is the closing of the gate, then the last round with checkpoint and dump at the same
// time (`control`), then restore, verification and commit. The closing and the restore are the
// `rest`. So the expected downtime is rest + max(last round, control).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "src/base/result.h"

namespace gcr::migration {

/// The parts of a downtime that do not depend on what is left to send.
struct SteadyDowntime {
  double control_ms = 0;  ///< checkpoint, dump and images, concurrently with the last round
  double rest_ms = 0;     ///< everything before and after that
  bool is_least = true;   ///< a lower bound: this kind has not been measured

  double with_last_round_ms(double last_round_ms) const {
    return rest_ms + (last_round_ms > control_ms ? last_round_ms : control_ms);
  }
};

/// The kind of a program: its name and, if that does not begin with "-", its first argument, both
/// without their folders: "counter", "python3 serve.py".
std::string kind_of_program(std::string_view command_line);

/// The expected times of this kind: the median of its last kRemembered migrations. Before its first
/// migration, those of the fastest other kind, or zero; both with `is_least`. A file that is
/// missing, damaged or not trustworthy counts as empty. Blocks.
SteadyDowntime expect_downtime(const std::filesystem::path& state_dir, const std::string& kind,
                               bool prefill);

/// Adds a measurement; the oldest of its kind, and of all, are removed. Another worker may do the
/// same concurrently. On failure the file is unchanged. Blocks.
Status remember_downtime(const std::filesystem::path& state_dir, const std::string& kind,
                         bool prefill, const SteadyDowntime& measured);

}  // namespace gcr::migration
