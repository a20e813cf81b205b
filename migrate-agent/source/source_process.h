// The processes of a job at the source, and the steps that take them apart:
//
//   running -close_gate-> gated -detach-> detached -lock-> locked -checkpoint-> checkpointed
//   -dump-> dumped
//
// recovery::bring_back() finds how far it has come, and leads back. Methods block and belong to one
// thread at a time.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>

#include "migrate-agent/cgroups/group.h"
#include "migrate-agent/criu/criu.h"
#include "migrate-agent/device/device.h"
#include "migrate-agent/gpu_access/gpu_access.h"
#include "migrate-agent/procfs/process_handle.h"

namespace gcr::agent {

class SourceProcess {
 public:
  /// `root` and all below it move; `access` is to `gpu_process`, one of them. `group` holds all of
  /// them from the dump on.
  SourceProcess(const device::Driver& driver, procfs::Process root, procfs::Process gpu_process,
                std::unique_ptr<GpuAccess> access, cgroups::Group group)
      : root_(std::move(root)),
        gpu_process_(std::move(gpu_process)),
        access_(std::move(access)),
        control_(driver.control(gpu_process_.pid())),
        group_(std::move(group)) {}

  GpuAccess& access() { return *access_; }
  const procfs::Process& gpu_process() const { return gpu_process_; }
  pid_t pid() const { return root_.pid(); }  ///< of the root
  const cgroups::Group& group() const { return group_; }

  /// Whether close_gate() was called, and not undone by open_gate().
  bool gated() const { return gated_; }
  /// Whether detach() was called: from then on a stop may be the dump's.
  bool detaching() const { return detaching_; }
  /// Whether dump() has stopped it.
  bool is_dumped() const { return dumped_; }

  /// Moves all of them into their group, where they keep running.
  Status enter_group();

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

  /// CRIU's images go where `prepared` and `take` say; the tasks stay stopped, and frozen. Gives
  /// the rights of all threads.
  Result<std::vector<proto::Credentials>> dump(criu::PreparedDump& prepared,
                                               const criu::TakeImage& take);

 private:
  procfs::Process root_;
  procfs::Process gpu_process_;
  std::unique_ptr<GpuAccess> access_;
  std::unique_ptr<device::Control> control_;
  cgroups::Group group_;
  bool gated_ = false;
  bool detaching_ = false;
  bool dumped_ = false;
};

}  // namespace gcr::agent
