#include "migrate-agent/roles/restored_process.h"

namespace gcr::agent {

Result<RestoredProcess> RestoredProcess::create(const Plan& plan, mover::Descriptors vram,
                                                Phases& phases) {
  GCR_ASSIGN(auto tree, phases.time("criu restore", [&] {
    return criu::restore(plan.criu, plan.images, plan.reaper);
  }));
  const mover::ControlCheckpoint control(plan.driver, tree.pid());
  GCR_ASSIGN(const pid_t cuda_tid, control.restore_thread());
  GCR_ASSIGN(auto frozen, phases.time("freeze", [&] {
    return criu::FrozenThreads::seize(tree.pid(), {plan.door_tid, cuda_tid});
  }));
  GCR_TRY(phases.time("control restore", [&] { return control.restore(plan.gpu_map); }));
  GCR_TRY(phases.time("unlock", [&] { return control.unlock(); }));
  GCR_ASSIGN(auto door, Door::open(tree.pid()));
  GCR_TRY(phases.time("attach VRAM", [&]() -> Status {
    GCR_TRY(door.offer(std::move(vram)));
    return door.attach();
  }));
  return RestoredProcess(std::move(tree), std::move(frozen), std::move(door));
}

Result<pid_t> RestoredProcess::commit() {
  GCR_TRY(frozen_.release());
  GCR_TRY(door_.open_gate());
  tree_.release();
  return tree_.pid();
}

}  // namespace gcr::agent
