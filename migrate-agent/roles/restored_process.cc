#include "migrate-agent/roles/restored_process.h"

#include <csignal>

#include "migrate-agent/fault/fault.h"
#include "migrate-agent/process/credentials.h"
#include "migrate-agent/process/inspect.h"

namespace gcr::agent {
namespace {

Status identify(pid_t pid, journal::ProcessId& out) {
  GCR_ASSIGN(const std::uint64_t started, process::start_time(pid));
  out.set_pid(pid);
  out.set_start_time(started);
  return {};
}

}  // namespace

Result<std::unique_ptr<RestoredProcess>> RestoredProcess::create(
    const std::shared_ptr<const mover::CudaDriver>& driver, criu::PreparedRestore& restore,
    const Expected& expected, const std::set<pid_t>& running,
    const std::vector<mover::GpuPair>& gpu_map, Phases& phases) {
  GCR_ASSIGN(auto tree, phases.time("process", "criu restore", [&] { return restore.run(); }));
  std::unique_ptr<RestoredProcess> process(new RestoredProcess(std::move(tree)));
  GCR_TRY(fault::point("destination.criu-restored"));
  const pid_t pid = process->tree_.pid();
  GCR_TRY(phases.time("process", "compare rights", [&]() -> Status {
    GCR_TRY(process::check_restored_credentials(process->tree_.init_pid(), expected.credentials));
    return process::check_restored_files(pid, expected.files);
  }));
  const mover::ControlCheckpoint control(driver, pid);
  GCR_ASSIGN(process->frozen_, phases.time("process", "freeze", [&] {
    return criu::FrozenThreads::seize(pid, running);
  }));
  GCR_TRY(fault::point("destination.frozen"));
  GCR_TRY(phases.time("process", "control restore", [&] { return control.restore(gpu_map); }));
  GCR_TRY(phases.time("process", "unlock", [&] { return control.unlock(); }));
  GCR_TRY(fault::point("destination.control-restored"));
  GCR_ASSIGN(process->door_, phases.time("process", "find door", [&] { return Door::open(pid); }));
  return process;
}

Status RestoredProcess::attach(mover::Descriptors vram, Phases& phases) {
  return phases.time("process", "attach VRAM", [&]() -> Status {
    GCR_TRY(door_->offer(std::move(vram)));
    return door_->attach();
  });
}

Status RestoredProcess::stand_still(Phases& phases) {
  return phases.time("process", "stand still", [&]() -> Status {
    GCR_TRY(door_->open_gate());
    return frozen_->stop_again();
  });
}

Result<journal::Restored> RestoredProcess::identity() const {
  journal::Restored restored;
  GCR_TRY(identify(tree_.pid(), *restored.mutable_process()));
  GCR_TRY(identify(tree_.init_pid(), *restored.mutable_init()));
  return restored;
}

void RestoredProcess::leave() {
  left_ = true;
  tree_.release();
}

RestoredProcess::~RestoredProcess() {
  if (!left_) ::kill(tree_.pid(), SIGKILL);
}

}  // namespace gcr::agent
