// Which buffers the process has, where they go, and who keeps them.
#include "migrate-agent/migration/source/course.h"

namespace gcr::migration::source {
namespace {

/// What a member's access says now, in particular what prevents a migration. The driver knows
/// nothing of that.
Status look_again(gpu::GpuAccess& access) {
  if (access.is_driver_alone()) return {};
  GCR_ASSIGN(const gpu::AccessState state, access.look());
  findings::Findings findings(findings::Side::kSource);
  preflight::check_access(state, findings);
  if (!findings.has_blocker()) return {};
  return Error(Code::kRefused, findings::reason_of(findings.list()));
}

/// What a member has exported, and the job knows. What several map is taken over once.
Status take_over(Course& c, gpu::MemberId member, std::vector<gpu::ExportedAllocation> exported,
                 proto::BuffersRequest& changes) {
  for (auto& [local, descriptor] : exported) {
    const gpu::AllocationId id = *c.subject.job.find({member, local.local_id});
    if (c.copying.vram->contains(id)) continue;
    const gpu::Allocation& allocation = c.subject.job.allocations().at(id);
    GCR_TRY(c.copying.vram->add(id, allocation.gpu, allocation.size_bytes, std::move(descriptor)));
    *changes.add_added() = gpu::to_message(allocation);
  }
  return {};
}

}  // namespace

Status follow_allocations(Course& c, proto::BuffersRequest& changes) {
  gpu::Job& job = c.subject.job;
  mover::OutgoingVram& vram = *c.copying.vram;
  std::vector<gpu::Listed> listed;
  std::vector<std::vector<gpu::ExportedAllocation>> taken;
  for (const GpuMember& member : c.subject.processes->gpu_members()) {
    GCR_TRY(look_again(*member.access));
    const auto is_new = [&](const gpu::LocalAllocation& allocation) {
      const auto known = job.find({member.id, allocation.local_id});
      return !known || !vram.contains(*known);
    };
    GCR_ASSIGN(auto listing, c.subject.lister.list(member.id, *member.access, is_new));
    listed.push_back(std::move(listing.listed));
    taken.push_back(std::move(listing.taken));
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
    GCR_TRY(take_over(c, listed[i].member, std::move(taken[i]), changes));
  }
  return {};
}

Status refresh_buffers(Course& c) {
  proto::BuffersRequest request;
  GCR_TRY(follow_allocations(c, request));
  if (request.ByteSizeLong() == 0) return {};
  GCR_ASSIGN(const proto::BuffersReply reply, c.target->change(request));
  return c.copying.vram->assign(reply.regions());
}

/// The journal knows the keeper before it holds anything.
Status start_keeper(Course& c) {
  GCR_ASSIGN(c.subject.keeper, keeper::Keeper::start_installed(c.run.worker.config.criu.reaper));
  journal::Record record;
  *record.mutable_keeper_started()->mutable_keeper() = c.subject.keeper->id();
  return c.run.log->advance(commit::SourceEvent::kKeeperStarted, std::move(record));
}

/// Costs little where the keeper has all of it already: it is armed before the gate closes, and by
/// another one if the process has allocated or freed since.
Status arm_keeper(Course& c) {
  auto& kept = c.subject.kept;
  GCR_ASSIGN(const mover::Descriptors descriptors, c.copying.vram->descriptors());
  std::vector<gpu::Mapping> mappings;
  std::vector<keeper::BufferDescriptor> wanted;
  for (const auto& [id, descriptor] : descriptors) {
    for (const gpu::Mapping& mapping : c.subject.job.allocations().at(id).mapped_by) {
      mappings.push_back(mapping);
      wanted.push_back({mapping, descriptor.get()});
    }
  }
  if (kept && *kept == mappings) return {};
  if (std::exchange(kept, std::nullopt)) {
    GCR_TRY(c.subject.keeper->end());
    GCR_TRY(start_keeper(c));
  }
  GCR_TRY(c.subject.keeper->arm(wanted));
  kept = std::move(mappings);
  return {};
}

}  // namespace gcr::migration::source
