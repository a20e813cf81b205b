#include "migrate-agent/criu/parent_death.h"

#include <fmt/format.h>

#include "migrate-agent/criu/criu_rpc.pb.h"
#include "migrate-agent/criu/images.h"
#include "migrate-agent/procfs/procfs.h"

namespace gcr::criu {

Status forget_parent_death_signal(pid_t pid, const ReadImage& read, const WriteImage& write) {
  for (const pid_t tid : procfs::threads(pid)) {
    const auto pids = procfs::namespace_pids(fmt::format("{}/task/{}", pid, tid));
    if (pids.empty()) continue;
    const std::string name = fmt::format("core-{}.img", pids.back());
    GCR_ASSIGN(const std::string image, read(name));
    const auto record = images::record_in(image, images::kCoreMagic);
    if (!record) return record.error().while_doing(name);
    wire::Core core;
    if (!core.ParseFromString(*record)) {
      return Error(Code::kDataLoss, "CRIU's image " + name + " cannot be read");
    }
    if (!core.thread_core().has_pdeath_sig()) continue;
    core.mutable_thread_core()->clear_pdeath_sig();
    GCR_TRY(write(name, images::image_of(images::kCoreMagic, core.SerializeAsString())));
  }
  return {};
}

}  // namespace gcr::criu
