// Which buffers the process has, where they go, and who keeps them.
#include <cstring>
#include <set>

#include "migrate-agent/source/course.h"

namespace gcr::agent::source {
namespace {

/// A process that frees buffers all the time is looked at this often.
constexpr unsigned kAttempts = 100;

Status take_over(mover::OutgoingVram& vram, std::vector<ExportedBuffer> exported) {
  for (ExportedBuffer& buffer : exported) {
    Uuid gpu;
    std::memcpy(gpu.bytes.data(), buffer.entry.device_uuid, gpu.bytes.size());
    GCR_TRY(vram.add(buffer.entry.id, gpu, buffer.entry.size_bytes, std::move(buffer.descriptor)));
  }
  return {};
}

}  // namespace

/// What is freed between the look and the taking shows as kNotFound: then it looks again.
Status follow_allocations(Course& c, proto::BuffersRequest& changes) {
  Door& door = c.subject.process->door();
  Inventory& inventory = c.subject.inventory;
  GCR_ASSIGN(const door::Summary summary, door.hello());
  preflight::Findings findings(preflight::Side::kSource);
  check_door(summary, findings);
  if (findings.has_blocker()) return Error(Code::kRefused, preflight::reason_of(findings.list()));
  for (unsigned attempt = 1;; ++attempt) {
    changes.Clear();
    GCR_ASSIGN(const auto entries, door.inventory());
    Inventory now;
    std::vector<std::uint64_t> added;
    for (const door::DoorEntry& entry : entries) {
      now.emplace(entry.id, entry);
      if (inventory.contains(entry.id)) continue;
      added.push_back(entry.id);
      *changes.add_added() = describe(entry);
    }
    auto exported = door.export_buffers(added);
    if (!exported && exported.error().code() == Code::kNotFound && attempt < kAttempts) continue;
    if (!exported) return exported.error();
    for (const auto& [id, entry] : inventory) {
      if (now.contains(id)) continue;
      changes.add_removed_ids(id);
      c.copying.vram->remove(id);
    }
    inventory = std::move(now);
    return take_over(*c.copying.vram, std::move(*exported));
  }
}

Status refresh_buffers(Course& c) {
  proto::BuffersRequest request;
  GCR_TRY(follow_allocations(c, request));
  if (request.added_size() == 0 && request.removed_ids_size() == 0) return {};
  GCR_ASSIGN(const proto::BuffersReply reply, c.target->change(request));
  return assign_regions(c, reply.regions());
}

Status assign_regions(Course& c,
                      const google::protobuf::RepeatedPtrField<proto::BufferRegion>& regions) {
  std::set<mover::BufferId> assigned;
  for (const proto::BufferRegion& region : regions) {
    if (!c.copying.vram->contains(region.buffer_id()) ||
        !assigned.insert(region.buffer_id()).second) {
      return Error(Code::kProtocol, "the destination prepared a buffer that was not asked for");
    }
    c.copying.vram->assign(region.buffer_id(), region.region());
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
  std::vector<std::uint64_t> ids;
  std::vector<keeper::BufferDescriptor> wanted;
  for (const auto& [id, descriptor] : descriptors) {
    ids.push_back(id);
    wanted.push_back({id, descriptor.get()});
  }
  if (kept && *kept == ids) return {};
  if (std::exchange(kept, std::nullopt)) {
    GCR_TRY(c.subject.keeper->end());
    GCR_TRY(start_keeper(c));
  }
  GCR_TRY(c.subject.keeper->arm(wanted));
  kept = std::move(ids);
  return {};
}

}  // namespace gcr::agent::source
