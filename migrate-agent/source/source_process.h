// The process at the source: the steps that take it apart, and the way back from each.
//
//   running -close_gate-> gated -detach-> detached -lock-> locked -checkpoint-> checkpointed
//   -dump-> dumped
//
// roll_back() leads from any of them to running. Methods block and belong to one thread at a time.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/cgroups/group.h"
#include "migrate-agent/criu/criu.h"
#include "migrate-agent/device/device.h"
#include "migrate-agent/door/door.h"
#include "migrate-agent/mover/chunk.h"
#include "migrate-agent/procfs/process_handle.h"

namespace gcr::agent {

class SourceProcess {
 public:
  /// How far the process has been taken apart. Zero is never used.
  enum class State { kInvalid = 0, kRunning, kGated, kDetached, kLocked, kCheckpointed, kDumped };

  /// `group` holds it from the dump on.
  SourceProcess(const device::Driver& driver, procfs::Process process, Door door,
                cgroups::Group group)
      : process_(std::move(process)),
        door_(std::move(door)),
        control_(driver.control(process_.pid())),
        group_(std::move(group)) {}

  Door& door() { return door_; }
  const procfs::Process& process() const { return process_; }
  pid_t pid() const { return process_.pid(); }
  const cgroups::Group& group() const { return group_; }
  State state() const { return state_; }

  /// Moves it into its group, where it keeps running. `home` is the group that it came from, to
  /// which roll_back() returns it.
  Status enter_group(std::string home);

  /// Holds back the application's calls and drains the GPU.
  Status close_gate(std::chrono::milliseconds timeout);

  /// The way back from gated only.
  Status open_gate();

  /// The application unmaps its VRAM; from here on only mover and keeper hold it.
  Status detach();

  /// The driver holds back further calls and waits for submitted work.
  Status lock(std::chrono::milliseconds timeout);

  /// The driver moves control state into host memory.
  Status checkpoint();

  /// CRIU's images go where `prepared` and `take` say; the tasks stay stopped, and frozen.
  Result<criu::DumpReport> dump(criu::PreparedDump& prepared, const criu::TakeImage& take);

  /// Undoes all of the above, in reverse; `vram` has the application's descriptors if it was
  /// detached. An error says which step failed and what state the process is in then.
  Status roll_back(mover::Descriptors vram);

  /// After the commit: kills the dumped process and removes its group.
  Status kill();

 private:
  procfs::Process process_;
  Door door_;
  std::unique_ptr<device::Control> control_;
  cgroups::Group group_;
  std::string home_;  ///< the group that it came from
  State state_ = State::kRunning;
};

}  // namespace gcr::agent
