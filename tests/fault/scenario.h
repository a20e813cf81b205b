// One migration with one harm in it, and its result.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "tests/fault/points.h"

namespace gcr::fault::test {

using Milliseconds = std::chrono::milliseconds;

enum class Harm : std::uint8_t {
  kNone,
  kError,       ///< the step at the point returns an Error
  kCorrupt,     ///< bytes are corrupted at the point
  kKillWorker,  ///< SIGKILL
  kKillDaemon,  ///< SIGKILL; it is restarted
  kKillBoth,    ///< worker and daemon at once
  kKillHost,    ///< every process of the host; its daemon is restarted
  kKillApp,     ///< the named process, as it is found on that side
  kKillMember,  ///< SIGKILL to a moving process, at the source
  kKillCopy,    ///< SIGKILL to one process of the copy at the destination, once it is restored
  kEndApp,      ///< SIGTERM to it: it ends by itself
  kWake,        ///< SIGCONT from outside to the program on that side, repeatedly
  kStop,        ///< SIGSTOP to the worker; SIGCONT after `lasts`
  kCut,         ///< the link goes down for `lasts`
  kRun,         ///< `command`; without a point, before the migration begins
  kArm,         ///< only arms `then_point`
};

std::string_view to_string(Harm harm);

struct Scenario {
  Harm harm = Harm::kNone;
  Side side = Side::kSource;  ///< whose worker, daemon, processes
  std::string point;          ///< strikes there; if empty, `delay` after the command was started
  Milliseconds delay{0};
  Milliseconds lasts{0};
  std::string command;  ///< of kRun, for sh -c; at a point its parent is the worker
  std::string undo;     ///< as `command`, when gcr-migrate has ended
  /// The program steps between the first round and the last, which then sends something.
  bool steps_between = false;
  std::string then_point;  ///< armed when the first harm strikes: a later point
  Harm then = Harm::kNone;
  std::optional<Side> survivor;  ///< where the process must run afterwards, if that is certain

  /// Whether the program itself may be among the killed processes.
  bool may_end_it() const {
    return harm == Harm::kKillHost || harm == Harm::kKillApp || harm == Harm::kKillMember ||
           harm == Harm::kEndApp;
  }

  /// In a few words.
  std::string describe() const;
};

struct Result {
  std::string program;  ///< the one that was moved
  std::string failure;  ///< the complaint; empty if all was right
  bool migrated = false;
  bool ended = false;  ///< the process itself was killed, and no copy is left
  int exit_code = -1;
  double recovery_ms = 0;  ///< from the removal of the harm until all was right
  double downtime_ms = 0;  ///< from gcr-migrate's report, if it migrated; else 0
  double total_ms = 0;     ///< of the whole run

  bool passed() const { return failure.empty(); }
};

}  // namespace gcr::fault::test
