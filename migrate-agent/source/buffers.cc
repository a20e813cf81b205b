// Which buffers the process has, where they go, and who keeps them.
#include <set>

#include "migrate-agent/source/course.h"

namespace gcr::agent::source {
namespace {

/// A process that frees buffers all the time is looked at this often.
constexpr unsigned kAttempts = 100;

proto::Buffer describe(const job::Allocation& allocation) {
  proto::Buffer buffer;
  buffer.set_id(allocation.id.value);
  buffer.set_size_bytes(allocation.size_bytes);
  buffer.set_gpu_uuid(to_bytes(allocation.gpu));
  for (const job::Mapping& mapping : allocation.mapped_by) {
    proto::Mapping& out = *buffer.add_mapped_by();
    out.set_member(mapping.member.value);
    out.set_local_id(mapping.local_id);
  }
  return buffer;
}

/// What a member has exported, and the job knows.
Status take_over(Course& c, job::MemberId member, std::vector<ExportedAllocation> exported,
                 proto::BuffersRequest& changes) {
  for (auto& [local, descriptor] : exported) {
    const job::AllocationId id = *c.subject.job.find({member, local.local_id});
    if (c.copying.vram->contains(id)) continue;
    const job::Allocation& allocation = c.subject.job.allocations().at(id);
    GCR_TRY(c.copying.vram->add(id, allocation.gpu, allocation.size_bytes, std::move(descriptor)));
    *changes.add_added() = describe(allocation);
  }
  return {};
}

/// What is freed between the look and the taking shows as kNotFound: then it looks again.
Status follow_member(Course& c, const GpuMember& member, proto::BuffersRequest& changes) {
  GpuAccess& access = *member.access;
  job::Job& job = c.subject.job;
  mover::OutgoingVram& vram = *c.copying.vram;
  GCR_ASSIGN(const AccessState state, access.look());
  preflight::Findings findings(preflight::Side::kSource);
  check_access(state, findings);
  if (findings.has_blocker()) return Error(Code::kRefused, preflight::reason_of(findings.list()));
  for (unsigned attempt = 1;; ++attempt) {
    GCR_ASSIGN(const auto now, access.allocations());
    std::vector<std::uint64_t> added;
    for (const LocalAllocation& allocation : now) {
      const auto known = job.find({member.id, allocation.local_id});
      if (!known || !vram.contains(*known)) added.push_back(allocation.local_id);
    }
    auto exported = access.take(added);
    if (!exported && exported.error().code() == Code::kNotFound && attempt < kAttempts) continue;
    if (!exported) return exported.error();
    const job::Job::Changes followed = job.follow(member.id, now);
    for (const job::AllocationId id : followed.removed) {
      if (!vram.contains(id)) continue;
      changes.add_removed_ids(id.value);
      vram.remove(id);
    }
    for (const job::AllocationId id : followed.remapped) {
      *changes.add_remapped() = describe(job.allocations().at(id));
    }
    return take_over(c, member.id, std::move(*exported), changes);
  }
}

}  // namespace

Status follow_allocations(Course& c, proto::BuffersRequest& changes) {
  for (const GpuMember& member : c.subject.processes->gpu_members()) {
    GCR_TRY(follow_member(c, member, changes));
  }
  return {};
}

Status refresh_buffers(Course& c) {
  proto::BuffersRequest request;
  GCR_TRY(follow_allocations(c, request));
  if (request.ByteSizeLong() == 0) return {};
  GCR_ASSIGN(const proto::BuffersReply reply, c.target->change(request));
  return assign_regions(c, reply.regions());
}

Status assign_regions(Course& c,
                      const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions) {
  std::set<job::AllocationId> assigned;
  for (const proto::BufferRegion& region : regions) {
    const job::AllocationId id{region.buffer_id()};
    if (!c.copying.vram->contains(id) || !assigned.insert(id).second) {
      return Error(Code::kProtocol, "the destination prepared a buffer that was not asked for");
    }
    c.copying.vram->assign(id, region.region());
  }
  return {};
}

/// The journal knows the keeper before it holds anything.
Status start_keeper(Course& c) {
  GCR_ASSIGN(c.subject.keeper,
             keeper::Keeper::start(c.worker.config.criu.reaper.parent_path() / "gcr-keeper"));
  journal::Record record;
  *record.mutable_keeper_started()->mutable_keeper() = c.subject.keeper->id();
  return c.account.log->advance(commit::SourceEvent::kKeeperStarted, std::move(record));
}

/// Costs little where the keeper has all of it already: it is armed before the gate closes, and by
/// another one if the process has allocated or freed since.
Status arm_keeper(Course& c) {
  auto& kept = c.subject.kept;
  GCR_ASSIGN(const mover::Descriptors descriptors, c.copying.vram->descriptors());
  std::vector<job::Mapping> mappings;
  std::vector<keeper::BufferDescriptor> wanted;
  for (const auto& [id, descriptor] : descriptors) {
    for (const job::Mapping& mapping : c.subject.job.allocations().at(id).mapped_by) {
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

}  // namespace gcr::agent::source
