#include "migrate-agent/migration/suspend/suspended.h"

#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/source/member.h"

namespace gcr::migration {
namespace {

using journal::ProcessId;

/// The mappings with the index of each member among the living ones.
Result<std::vector<gpu::Mapping>> mapped_by(const std::vector<gpu::Mapping>& suspended,
                                            const journal::ProcessIds& members,
                                            const journal::ProcessIds& living) {
  std::vector<gpu::Mapping> mappings;
  for (const gpu::Mapping& mapping : suspended) {
    if (mapping.member.value >= static_cast<std::uint32_t>(members.size())) {
      return Error(Code::kDataLoss, "the copy of VRAM belongs to another job");
    }
    const ProcessId& member = members[static_cast<int>(mapping.member.value)];
    const auto place = std::ranges::find_if(
        living, [&](const ProcessId& candidate) { return journal::is_same(candidate, member); });
    if (place == living.end()) {
      return Error(Code::kRefused,
                   fmt::format("process {}, which has GPU memory, has ended since the job was "
                               "suspended: resume the others, or kill them",
                               member.pid()));
    }
    mappings.push_back({{static_cast<std::uint32_t>(place - living.begin())}, mapping.local_id});
  }
  return mappings;
}

}  // namespace

Result<journal::Entry> find_suspended(const worker::WorkerContext& worker, pid_t pid) {
  GCR_ASSIGN(const worker::MovableProcess process, worker.permissions.check_process(pid));
  GCR_ASSIGN(const auto entries, journal::list(worker.config.state_dir));
  const ProcessId wanted = id_of(pid, process.start_time);
  for (const journal::Entry& entry : entries) {
    const auto contents = journal::peek(entry.path);
    if (!contents || contents->damage || !journal::suspended(contents->records)) continue;
    const auto is_it = [&](const ProcessId& member) { return journal::is_same(member, wanted); };
    if (std::ranges::any_of(journal::members_of(contents->records), is_it)) return entry;
  }
  return Error(Code::kNotFound, fmt::format("process {} is not suspended", pid));
}

Result<commit::SourceLog> take_suspended(worker::WorkerContext& worker, const journal::Entry& entry,
                                         pid_t pid) {
  GCR_TRY(worker::on_io(
      worker.io, worker.daemon.take_suspended(entry.migration, worker.channel.peer().common_name)));
  GCR_ASSIGN(auto log, commit::SourceLog::open(entry.path, journal::Lock::kWait));
  if (log.state() != commit::SourceState::kSuspended) {
    return Error(Code::kRefused, fmt::format("process {} is not suspended any more: it is {}", pid,
                                             to_string(log.state())));
  }
  GCR_ASSIGN(const auto migration, finish::migration_of_suspended(log.journal()));
  if (!migration) return log;
  return Error(Code::kRefused,
               fmt::format("process {} is already being migrated, by migration {}; wait until that "
                           "has ended",
                           pid, migration->to_string()));
}

Result<gpu::HostCopy> open_copy(std::span<const journal::Record> records, pid_t pid) {
  const auto keeper = finish::keeper_of(records, finish::Kept::kCopy);
  Result<gpu::HostCopy> copy = Error(Code::kNotFound, "no keeper was started");
  if (keeper) copy = gpu::HostCopy::open(*keeper);
  if (copy || copy.error().code() != Code::kNotFound) return copy;
  return Error(Code::kDataLoss,
               fmt::format("the VRAM of process {} is lost, because the keeper of its copy has "
                           "ended ({}): the process can only be killed",
                           pid, copy.error().message()));
}

Result<journal::ProcessIds> living_members(const worker::Permissions& permissions,
                                           std::span<const journal::Record> records) {
  journal::ProcessIds living;
  for (const ProcessId& member : journal::members_of(records)) {
    if (!finish::is_alive(member)) continue;
    GCR_TRY(permissions.check_process(member.pid()));
    *living.Add() = member;
  }
  const ProcessId& root = journal::members_of(records)[0];
  if (!living.empty() && journal::is_same(living[0], root)) return living;
  return Error(Code::kNotFound,
               fmt::format("process {} has ended since its job was suspended", root.pid()));
}

Result<preflight::SuspendedJob> describe_suspended(std::span<const journal::Record> records,
                                                   const journal::ProcessIds& living,
                                                   const gpu::HostCopy& copy) {
  const gpu::KeptCopy& description = copy.description();
  preflight::SuspendedJob suspended{.suspension = journal::id_of(records.front().began()),
                                    .job = gpu::Job(static_cast<std::uint32_t>(living.size())),
                                    .limits = description.limits(),
                                    .gpus = description.gpus(),
                                    .gpu_members = {}};
  for (const gpu::KeptMember& member : description.members()) {
    suspended.gpu_members[member.pid()] = {member.door_tid(), member.cuda_restore_tid()};
  }
  for (const gpu::KeptBuffer& kept : description.buffers()) {
    gpu::Allocation allocation = gpu::from_message(kept.buffer());
    GCR_ASSIGN(allocation.mapped_by,
               mapped_by(allocation.mapped_by, journal::members_of(records), living));
    if (suspended.job.add(std::move(allocation))) continue;
    return Error(Code::kDataLoss,
                 fmt::format("the copy of VRAM names buffer {} twice", kept.buffer().id()));
  }
  return suspended;
}

}  // namespace gcr::migration
