#include "migrate-agent/destination/restored_process.h"

#include <csignal>

#include "migrate-agent/door/door.h"
#include "migrate-agent/fault/fault.h"
#include "migrate-agent/process/credentials.h"
#include "migrate-agent/process/inspect.h"
#include "migrate-agent/procfs/procfs.h"

namespace gcr::agent {
namespace {

void identify(const procfs::Process& process, journal::ProcessId& out) {
  out.set_pid(process.pid());
  out.set_start_time(process.start_time());
}

}  // namespace

Result<std::unique_ptr<RestoredProcess>> RestoredProcess::create(
    const std::shared_ptr<const device::Driver>& driver, criu::PreparedRestore& restore,
    const Expected& expected, const std::set<pid_t>& running,
    const std::vector<device::GpuPair>& gpu_map, cgroups::Group group, Phases& phases) {
  GCR_ASSIGN(auto tree, phases.time("process", "criu restore", [&] { return restore.run(); }));
  std::unique_ptr<RestoredProcess> process(new RestoredProcess(std::move(tree), std::move(group)));
  GCR_TRY(phases.time("process", "freeze", [&] { return process->hold(); }));
  GCR_TRY(fault::point("destination.criu-restored"));
  const pid_t pid = process->tree_.pid();
  GCR_TRY(phases.time("process", "compare rights", [&]() -> Status {
    GCR_TRY(process::check_restored_credentials(process->tree_.init().pid(), expected.credentials));
    return process::check_restored_files(pid, expected.files);
  }));
  const auto control = driver->control(pid);
  GCR_ASSIGN(process->frozen_, phases.time("process", "seize", [&] {
    return criu::FrozenThreads::seize(process->tree_.root(), running,
                                      [&] { return process->group_.thaw(); });
  }));
  GCR_TRY(fault::point("destination.frozen"));
  GCR_TRY(phases.time("process", "control restore", [&] { return control->restore(gpu_map); }));
  GCR_TRY(phases.time("process", "unlock", [&] { return control->unlock(); }));
  GCR_TRY(fault::point("destination.control-restored"));
  GCR_ASSIGN(process->access_,
             phases.time("process", "find door", [&] { return open_access(pid); }));
  return process;
}

/// As CRIU left it: stopped, and SIGCONT has no effect. Threads that version 1 has frozen could not
/// be seized.
Status RestoredProcess::hold() {
  if (!group_.directory_for_criu().empty()) return group_.freeze();
  return procfs::wait_until_stopped(tree_.pid());
}

Status RestoredProcess::attach(job::LocalDescriptors vram, Phases& phases) {
  return phases.time("process", "attach VRAM", [&] { return access_->attach(std::move(vram)); });
}

Status RestoredProcess::stand_still(Phases& phases) {
  return phases.time("process", "stand still", [&]() -> Status {
    GCR_TRY(access_->resume());
    if (!group_.freezes()) return frozen_->stop_again();
    return frozen_->stop_again(
        [&] { return phases.time("process", "freeze", [&] { return group_.freeze(); }); });
  });
}

journal::Restored RestoredProcess::identity() const {
  journal::Restored restored;
  identify(tree_.root(), *restored.add_members());
  identify(tree_.init(), *restored.mutable_init());
  return restored;
}

void RestoredProcess::leave() {
  left_ = true;
  tree_.release();
}

RestoredProcess::~RestoredProcess() {
  if (left_) return;
  (void)tree_.root().send(SIGKILL);
  (void)group_.thaw();
}

}  // namespace gcr::agent
