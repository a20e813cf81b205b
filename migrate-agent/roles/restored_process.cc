#include "migrate-agent/roles/restored_process.h"

#include <csignal>

namespace gcr::agent {

Result<std::unique_ptr<RestoredProcess>> RestoredProcess::create(
    const std::shared_ptr<const mover::CudaDriver>& driver, criu::PreparedRestore& restore,
    const std::set<pid_t>& running, const std::vector<mover::GpuPair>& gpu_map, Phases& phases) {
  GCR_ASSIGN(auto tree, phases.time("process", "criu restore", [&] { return restore.run(); }));
  std::unique_ptr<RestoredProcess> process(new RestoredProcess(std::move(tree)));
  const pid_t pid = process->tree_.pid();
  const mover::ControlCheckpoint control(driver, pid);
  GCR_ASSIGN(process->frozen_, phases.time("process", "freeze", [&] {
    return criu::FrozenThreads::seize(pid, running);
  }));
  GCR_TRY(phases.time("process", "control restore", [&] { return control.restore(gpu_map); }));
  GCR_TRY(phases.time("process", "unlock", [&] { return control.unlock(); }));
  GCR_ASSIGN(process->door_, phases.time("process", "find door", [&] { return Door::open(pid); }));
  return process;
}

Status RestoredProcess::attach(mover::Descriptors vram, Phases& phases) {
  return phases.time("process", "attach VRAM", [&]() -> Status {
    GCR_TRY(door_->offer(std::move(vram)));
    return door_->attach();
  });
}

RestoredProcess::~RestoredProcess() {
  if (!committed_) ::kill(tree_.pid(), SIGKILL);
}

Result<pid_t> RestoredProcess::commit() {
  committed_ = true;
  const pid_t pid = tree_.pid();
  tree_.release();
  GCR_TRY(frozen_->release());
  // A thread that stood before its end may have ended the process by now: that is its own affair.
  const Status opened = door_->open_gate();
  if (!opened && opened.error().code() != Code::kNotFound) return opened.error();
  return pid;
}

}  // namespace gcr::agent
