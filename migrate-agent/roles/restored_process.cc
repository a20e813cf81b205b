#include "migrate-agent/roles/restored_process.h"

#include <csignal>

namespace gcr::agent {

Result<std::unique_ptr<RestoredProcess>> RestoredProcess::create(const Plan& plan,
                                                                 mover::Descriptors vram,
                                                                 Phases& phases) {
  GCR_ASSIGN(auto tree, phases.time("criu restore", [&] {
    return criu::restore(plan.criu, plan.images, plan.reaper);
  }));
  std::unique_ptr<RestoredProcess> process(new RestoredProcess(std::move(tree)));
  const pid_t pid = process->tree_.pid();
  const mover::ControlCheckpoint control(plan.driver, pid);
  GCR_ASSIGN(process->frozen_,
             phases.time("freeze", [&] { return criu::FrozenThreads::seize(pid, plan.running); }));
  GCR_TRY(phases.time("control restore", [&] { return control.restore(plan.gpu_map); }));
  GCR_TRY(phases.time("unlock", [&] { return control.unlock(); }));
  GCR_ASSIGN(process->door_, Door::open(pid));
  GCR_TRY(phases.time("attach VRAM", [&]() -> Status {
    GCR_TRY(process->door_->offer(std::move(vram)));
    return process->door_->attach();
  }));
  return process;
}

RestoredProcess::~RestoredProcess() {
  if (!committed_) ::kill(tree_.pid(), SIGKILL);
}

Result<pid_t> RestoredProcess::commit() {
  committed_ = true;
  const pid_t pid = tree_.pid();
  tree_.release();
  GCR_TRY(frozen_->release());
  GCR_TRY(door_->open_gate());
  return pid;
}

}  // namespace gcr::agent
