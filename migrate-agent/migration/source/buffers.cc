// Follows the job's allocations, and hands the VRAM to the keeper.
#include "migrate-agent/migration/source/course.h"

namespace gcr::migration::source {
namespace {

/// Checks that the member's preload library reports nothing by now that prevents a migration. A
/// member without the library reports nothing.
Status check_again(gpu::GpuAccess& access) {
  if (access.is_driver_alone()) return {};
  GCR_ASSIGN(const gpu::AccessState state, access.read_state());
  findings::Findings findings(findings::Side::kSource);
  preflight::check_access(state, findings);
  if (!findings.has_blocker()) return {};
  return Error(Code::kRefused, findings::reason_of(findings.list()));
}

/// Adds what a member has exported, unless it is there: several members may map an allocation.
Status take_over(const gpu::Job& job, mover::OutgoingVram& vram, gpu::MemberId member,
                 std::vector<gpu::ExportedAllocation>&& exported, proto::BuffersRequest& changes) {
  for (auto& [local, descriptor] : exported) {
    const gpu::AllocationId id = *job.find({member, local.local_id});
    if (vram.contains(id)) continue;
    const gpu::Allocation& allocation = job.allocations().at(id);
    GCR_TRY(vram.add(id, allocation.gpu, allocation.size_bytes, std::move(descriptor)));
    *changes.add_added() = gpu::to_message(allocation);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<TakenVram>> take_vram(const Begun& begun) {
  GCR_ASSIGN(keeper::Keeper keeper, start_keeper(begun.course.run));
  return std::make_unique<TakenVram>(begun, std::move(keeper));
}

Result<proto::BuffersRequest> follow_allocations(Begun& begun, TakenVram& taken) {
  gpu::Job& job = begun.job;
  mover::OutgoingVram& vram = taken.outgoing;
  proto::BuffersRequest changes;
  std::vector<gpu::Listed> listed;
  std::vector<std::vector<gpu::ExportedAllocation>> exported;
  for (const Member* member : begun.processes.gpu_members()) {
    GCR_TRY(check_again(*member->access));
    const auto is_new = [&](const gpu::LocalAllocation& allocation) {
      const auto known = job.find({member->number, allocation.local_id});
      return !known || !vram.contains(*known);
    };
    GCR_ASSIGN(auto listing, begun.lister.list(member->number, *member->access, is_new));
    listed.push_back(std::move(listing.listed));
    exported.push_back(std::move(listing.taken));
  }
  const gpu::Job::Changes followed = job.follow(listed);
  GCR_TRY(preflight::check_sizes(job));
  for (const gpu::AllocationId id : followed.removed) {
    if (!vram.contains(id)) continue;
    changes.add_removed_ids(id.value);
    vram.remove(id);
  }
  for (const gpu::AllocationId id : followed.remapped) {
    if (vram.contains(id)) *changes.add_remapped() = gpu::to_message(job.allocations().at(id));
  }
  for (std::size_t i = 0; i < listed.size(); ++i) {
    GCR_TRY(take_over(job, vram, listed[i].member, std::move(exported[i]), changes));
  }
  return changes;
}

Status refresh_buffers(Prepared& prepared) {
  GCR_ASSIGN(const proto::BuffersRequest changes,
             follow_allocations(prepared.begun, *prepared.vram));
  if (changes.ByteSizeLong() == 0) return {};
  GCR_ASSIGN(const proto::BuffersReply reply, prepared.begun.claimed.target->change(changes));
  return prepared.vram->outgoing.assign(reply.regions());
}

Result<keeper::Keeper> start_keeper(Run& run, bool of_copy) {
  GCR_ASSIGN(keeper::Keeper keeper, keeper::Keeper::start_installed(run.worker.config.criu.reaper));
  journal::Record record;
  *record.mutable_keeper_started()->mutable_keeper() = keeper.id();
  if (of_copy) record.mutable_keeper_started()->set_of_copy(true);
  GCR_TRY(run.log->advance(commit::SourceEvent::kKeeperStarted, std::move(record)));
  return keeper;
}

/// Called before the gate closes and again after it: the second call costs little, unless members
/// have allocated or freed since. Then a new keeper replaces the first.
Status arm_keeper(Begun& begun, TakenVram& vram) {
  GCR_ASSIGN(const mover::Descriptors descriptors, vram.outgoing.descriptors());
  std::vector<gpu::Mapping> mappings;
  std::vector<keeper::BufferDescriptor> wanted;
  for (const auto& [id, descriptor] : descriptors) {
    for (const gpu::Mapping& mapping : begun.job.allocations().at(id).mapped_by) {
      mappings.push_back(mapping);
      wanted.push_back({mapping, descriptor.get()});
    }
  }
  if (vram.kept && *vram.kept == mappings) return {};
  if (std::exchange(vram.kept, std::nullopt)) {
    GCR_TRY(vram.keeper.end());
    GCR_ASSIGN(vram.keeper, start_keeper(begun.course.run));
  }
  GCR_TRY(vram.keeper.arm(wanted));
  vram.kept = std::move(mappings);
  return {};
}

}  // namespace gcr::migration::source
