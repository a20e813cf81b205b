// How long those steps of a downtime take that do not depend on how much VRAM is left to send,
// learned from this agent's earlier migrations: STATE_DIR/downtimes, the last few per kind of
// program.
//
// A downtime is the gate, then the last round with checkpoint and dump at the same time, then
// restore, verification and commit. So it is expected to take rest + max(last round, beside).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "src/base/result.h"

namespace gcr::migration {

/// The part that does not depend on what is left to send.
struct SteadyDowntime {
  double beside_ms = 0;
  double rest_ms = 0;
  bool is_least = true;  ///< nothing of this kind has been measured: it takes no less than this

  double with_last_round_ms(double last_round_ms) const {
    return rest_ms + (last_round_ms > beside_ms ? last_round_ms : beside_ms);
  }
};

/// The program and, where that does not begin with "-", its first argument, without their folders:
/// "counter", "python3 serve.py".
std::string kind_of_program(std::string_view command_line);

/// What to expect of this kind: the median of its last kRemembered migrations. Before there is any,
/// the quickest of all other kinds, or nothing: both `is_least`. A file that is missing, damaged or
/// not trustworthy counts as empty. Blocks.
SteadyDowntime expect_downtime(const std::filesystem::path& state_dir, const std::string& kind,
                               bool prefill);

/// Adds one; the oldest of its kind, and of all, are forgotten. Another worker may do the same at
/// the same time. On failure the file is as it was. Blocks.
Status remember_downtime(const std::filesystem::path& state_dir, const std::string& kind,
                         bool prefill, const SteadyDowntime& measured);

}  // namespace gcr::migration
