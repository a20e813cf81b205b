// The steps from the order to the journal: claims the processes, so that no other migration moves
// them, and begins the journal, so that the migration survives its worker.
#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/linux/procfs/container.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/finish/container.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/process/slurm/step.h"
#include "src/base/log.h"
#include "src/base/random.h"
#include "src/base/side_by_side.h"

namespace gcr::migration::source {
namespace {

/// The most processes that are examined concurrently.
constexpr std::size_t kMostExaminers = 8;

/// Checks that no other migration has a member. A daemon that was restarted after the claim knows
/// of no claim, and may grant the process to a second migration. Both have a worker's entry in the
/// directory by now, so the later of the two sees the other.
Status check_alone(const Claimed& claimed) {
  namespace fs = std::filesystem;
  const Run& run = claimed.course.run;
  const worker::Config& config = run.worker.config;
  const journal::ProcessIds members = ids_of(claimed.members);
  std::error_code error;
  for (const auto& name : fs::directory_iterator(config.runtime_dir / "workers", error)) {
    const auto other = journal::entry_of(name.path());
    if (!other || other->role != journal::Began::SOURCE || other->migration == run.migration) {
      continue;
    }
    if (claimed.suspended && other->migration == claimed.suspended->suspension) continue;
    const auto contents =
        journal::peek(journal::path_of(config.state_dir, other->migration, other->role));
    if (!contents || contents->damage || !journal::unfinished(contents->records)) continue;
    for (const journal::ProcessId& theirs : contents->records.front().began().members()) {
      const auto is_theirs = [&theirs](const journal::ProcessId& ours) {
        return journal::is_same(ours, theirs);
      };
      if (std::ranges::none_of(members, is_theirs)) continue;
      return Error(Code::kRefused, fmt::format("migration {} is already moving process {}",
                                               other->migration.to_string(), theirs.pid()));
    }
  }
  return {};
}

/// Adds the processes of `tree` that are not members yet. Fails if one of `tree` may not be moved:
/// a member may have executed another user's program. Zombies move with their parents.
Status add_descendants(Claimed& claimed, const std::vector<pid_t>& tree) {
  const worker::Permissions rights = permissions(claimed.course);
  for (const pid_t pid : tree) {
    const auto stat = procfs::read_stat(pid);
    if (!stat || procfs::has_ended(*stat)) continue;
    const auto allowed = rights.check_process(pid, stat->start_time);
    if (!allowed && allowed.error().code() == Code::kNotFound) continue;
    GCR_TRY(allowed);
    const auto is_it = [&](const Member& member) {
      return member.pid() == pid && member.process.start_time() == stat->start_time;
    };
    if (std::ranges::any_of(claimed.members, is_it)) continue;
    auto process = procfs::Process::open(pid, stat->start_time);
    if (process) claimed.members.push_back({std::move(*process)});
  }
  return {};
}

Status claim_members(const Claimed& claimed) {
  Run& run = claimed.course.run;
  *run.began.mutable_members() = ids_of(claimed.members);
  return worker::on_io(run.worker.io,
                       run.worker.daemon.claim_processes(run.migration, run.began.members(),
                                                         run.began.ordered_by()));
}

Status describe(Run& run, const Claimed& claimed, const preflight::Examination& found) {
  const proto::MigrateRequest& request = claimed.course.request;
  if (claimed.target != nullptr) run.began.set_peer(claimed.target->name());
  if (claimed.target != nullptr) run.began.set_peer_name(claimed.target->common_name());
  if (const auto step = slurm::step_of(claimed.root().pid())) run.began.set_slurm_left(step->job);
  run.began.set_slurm_job(request.slurm_job());
  if (claimed.suspended) run.began.set_suspension(to_bytes(claimed.suspended->suspension));
  if (found.container) {
    GCR_ASSIGN(*run.began.mutable_container(), finish::describe(*found.container));
  }
  if (found.network) *run.began.mutable_network() = *found.network;
  return {};
}

}  // namespace

worker::Permissions permissions(const Course& course) {
  if (!course.request.has_checkpoint()) return course.run.worker.permissions;
  return course.run.worker.permissions.for_store_of(course.run.began.uid());
}

Result<store::Owner> owner_of(const worker::WorkerContext& worker,
                              const proto::MigrateRequest& request,
                              const worker::MovableProcess& root, bool in_container) {
  if (!request.has_checkpoint() || !in_container) return store::Owner{root.uid, root.gid};
  const Status allowed = worker.permissions.check(0);
  if (allowed) return store::Owner{0, 0};
  return allowed.error().while_doing("a checkpoint of a container's job belongs to root");
}

Status note_owner(Course& course, pid_t pid, const worker::MovableProcess& root) {
  GCR_ASSIGN(const auto container, procfs::Container::of_root(pid));
  GCR_ASSIGN(const store::Owner owner,
             owner_of(course.run.worker, course.request, root, container.has_value()));
  course.run.began.set_uid(owner.uid);
  course.run.began.set_gid(owner.gid);
  return {};
}

Status claim_for_target(Claimed& claimed) {
  Course& course = claimed.course;
  GCR_TRY(add_descendants(claimed, procfs::tree(claimed.root().pid())));
  if (course.find_target) {
    claimed.end_target();
    GCR_ASSIGN(claimed.target, course.find_target(claimed));
    claimed.interrupting = interrupt_when_cancelled(course.run, *claimed.target);
  }
  return claim_members(claimed);
}

Result<Claimed> claim(Course& course) {
  Run& run = course.run;
  const pid_t pid = course.request.pid();
  GCR_ASSIGN(const worker::MovableProcess named,
             run.worker.permissions.check_process(pid, course.request.start_time()));
  run.report.set_start_time(named.start_time);
  GCR_TRY(note_owner(course, pid, named));
  Claimed claimed{course};
  GCR_ASSIGN(procfs::Process root, procfs::Process::open(pid, named.start_time));
  claimed.members.push_back({std::move(root)});
  GCR_TRY(claim_for_target(claimed));
  return claimed;
}

Status follow_members(Begun& begun, const std::vector<pid_t>& tree) {
  Members& members = begun.claimed.members;
  GCR_TRY(add_descendants(begun.claimed, tree));
  if (std::ranges::all_of(members, &Member::examined)) return {};
  if (members.size() > gpu::kMaxMembers) {
    return Error(Code::kRefused,
                 fmt::format("the job has {} processes by now, at most {} are supported",
                             members.size(), gpu::kMaxMembers));
  }
  for (Member& member : members) {
    if (member.examined) continue;
    auto found = preflight::examine_late(begun.course.request, member.pid(), tree, begun.limits);
    if (!found && found.error().code() != Code::kNotFound) return found.error();
    if (found) member.confinement = *std::move(found);
    member.examined = true;
  }
  return claim_members(begun.claimed);
}

bool is_transient(const Claimed& claimed, const Error& refused, Clock::time_point end) {
  if (refused.code() != Code::kRefused || Clock::now() >= end) return false;
  journal::ProcessIds late;
  for (const Member& member : claimed.members) {
    if (late.empty() || !member.examined) *late.Add() = id_of(member);
  }
  if (!any_member_ends(late)) return false;
  spdlog::info("a process of the job has ended, so examining the job again after the refusal: {}",
               refused.message());
  return true;
}

Status examine_frozen(Begun& begun) {
  const std::vector<pid_t> tree = procfs::stopped_tree(begun.processes.pid());
  GCR_TRY(follow_members(begun, tree));
  const Members& members = begun.claimed.members;
  return share_out(tree.size(), kMostExaminers, [&](std::size_t i) -> Status {
    const auto member = std::ranges::find(members, tree[i], &Member::pid);
    if (member != members.end() && member->confinement) {
      return preflight::examine_again(tree[i], *member->confinement);
    }
    const auto stat = procfs::read_stat(tree[i]);
    if (!stat || procfs::has_ended(*stat) || procfs::is_exiting(*stat)) return {};
    return Error(Code::kRefused,
                 fmt::format("process {} was started after the job was examined", tree[i]));
  });
}

Result<std::unique_ptr<Begun>> begin(Claimed& claimed, preflight::Examination found) {
  Run& run = claimed.course.run;
  const DigestSecret key =
      claimed.target != nullptr ? claimed.target->digest_key() : random_bytes<32>();
  GCR_TRY(describe(run, claimed, found));
  GCR_TRY(begin_journal(run));
  run.report.set_processes(found.job.members());
  std::uint32_t number = 0;
  std::uint64_t resident_bytes = 0;
  for (preflight::Member& examined : found.members) {
    Member& member = claimed.members[number];
    member.number = {number++};
    member.examined = true;
    resident_bytes += examined.facts.resident_bytes();
    if (!examined.access) continue;
    member.access = std::move(examined.access);
    member.control = found.host.driver->control(member.pid());
    run.report.set_gpu_processes(run.report.gpu_processes() + 1);
  }
  auto begun = std::make_unique<Begun>(
      Begun{claimed.course, claimed, key, found.members.front().facts.limits(),
            std::move(found.host.driver), std::move(found.job), std::move(found.lister),
            std::move(found.driver_alone), std::move(found.criu_plugin), resident_bytes,
            SourceJob(claimed.members, finish::group_of(run.log->journal()))});
  GCR_TRY(announce(run));
  GCR_TRY(check_alone(claimed));
  GCR_TRY(fault::point("source.began"));
  return begun;
}

}  // namespace gcr::migration::source
