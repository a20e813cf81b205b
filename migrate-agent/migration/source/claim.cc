// Nobody else moves the process from here on.
#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/migration/source/transient.h"
#include "src/base/log.h"
#include "src/base/side_by_side.h"

namespace gcr::migration::source {
namespace {

/// At a time.
constexpr std::size_t kMostLooks = 8;

/// A daemon that was started after the process was claimed knows of no claim, and may have let
/// somebody else have the process. Whoever is at a migration has a name by now: of two, the later
/// one at least sees the other.
Status check_alone(const Course& c) {
  namespace fs = std::filesystem;
  const worker::Config& config = c.run.worker.config;
  std::error_code error;
  for (const auto& name : fs::directory_iterator(config.runtime_dir / "workers", error)) {
    const auto other = journal::entry_of(name.path());
    if (!other || other->role != journal::Began::SOURCE || other->migration == c.run.migration) {
      continue;
    }
    if (c.subject.suspended && other->migration == c.subject.suspended->suspension) continue;
    const auto contents =
        journal::peek(journal::path_of(config.state_dir, other->migration, other->role));
    if (!contents || contents->damage || !journal::unfinished(contents->records)) continue;
    for (const journal::ProcessId& theirs : contents->records.front().began().members()) {
      const auto is_theirs = [&theirs](const journal::ProcessId& ours) {
        return journal::is_same(ours, theirs);
      };
      if (std::ranges::none_of(c.subject.members, is_theirs)) continue;
      return Error(Code::kRefused, fmt::format("migration {} has process {}",
                                               other->migration.to_string(), theirs.pid()));
    }
  }
  return {};
}

void add_member(journal::ProcessIds& members, pid_t pid, std::uint64_t start_time) {
  journal::ProcessId& member = *members.Add();
  member.set_pid(pid);
  member.set_start_time(start_time);
}

/// Adds those of `tree` that are not members yet, if all of `tree` may be moved: a member may have
/// executed what is another user's. Zombies move with their parents.
Status add_descendants(Course& c, const std::vector<pid_t>& tree) {
  journal::ProcessIds& members = c.subject.members;
  const worker::Permissions rights = permissions(c);
  for (const pid_t pid : tree) {
    const auto stat = procfs::read_stat(pid);
    if (!stat || procfs::has_ended(*stat)) continue;
    const auto is_it = [&](const journal::ProcessId& member) {
      return member.pid() == pid && member.start_time() == stat->start_time;
    };
    const auto allowed = rights.check_process(pid, stat->start_time);
    if (!allowed && allowed.error().code() == Code::kNotFound) continue;
    GCR_TRY(allowed);
    if (std::ranges::none_of(members, is_it)) add_member(members, pid, stat->start_time);
  }
  return {};
}

Status claim_members(Course& c) {
  return worker::on_io(c.run.worker.io, c.run.worker.daemon.claim_processes(
                                            c.run.migration, c.subject.members,
                                            c.run.worker.channel.peer().common_name));
}

}  // namespace

worker::Permissions permissions(const Course& c) {
  if (!c.request.has_checkpoint()) return c.run.worker.permissions;
  return c.run.worker.permissions.for_store_of(c.subject.claimed.uid);
}

Status claim_for_target(Course& c) {
  GCR_TRY(add_descendants(c, procfs::tree(c.request.pid())));
  GCR_ASSIGN(c.target, c.find_target(c));
  c.interrupting = c.run.worker.cancellation.on_request([&c] {
    if (c.target != nullptr) c.target->interrupt(c.run.worker.cancellation.check().error());
  });
  GCR_TRY(claim_members(c));
  GCR_ASSIGN(c.subject.handle,
             procfs::Process::open(c.request.pid(), c.subject.claimed.start_time));
  return {};
}

/// What is refused after that leaves no journal.
Status claim(Course& c) {
  const pid_t pid = c.request.pid();
  GCR_ASSIGN(c.subject.claimed,
             c.run.worker.permissions.check_process(pid, c.request.start_time()));
  c.run.report.set_start_time(c.subject.claimed.start_time);
  add_member(c.subject.members, pid, c.subject.claimed.start_time);
  return claim_for_target(c);
}

Status follow_members(Course& c, const std::vector<pid_t>& tree) {
  int& examined = c.subject.examined;
  if (examined == 0) examined = c.subject.members.size();
  GCR_TRY(add_descendants(c, tree));
  if (c.subject.members.size() == examined) return {};
  if (c.subject.members.size() > static_cast<int>(gpu::kMaxMembers)) {
    return Error(Code::kRefused, fmt::format("it has {} processes by now, {} are allowed",
                                             c.subject.members.size(), gpu::kMaxMembers));
  }
  for (; examined < c.subject.members.size(); ++examined) {
    const pid_t pid = c.subject.members[examined].pid();
    auto found = preflight::examine_late(c.request, pid, tree, c.subject.limits);
    if (!found && found.error().code() == Code::kNotFound) continue;
    GCR_TRY(found);
    c.subject.confinements[pid] = *std::move(found);
  }
  return claim_members(c);
}

bool is_transient(const Course& c, const Error& refused, Clock::time_point end) {
  if (refused.code() != Code::kRefused || Clock::now() >= end) return false;
  journal::ProcessIds late;
  *late.Add() = c.subject.members[0];
  for (int i = std::max(1, c.subject.examined); i < c.subject.members.size(); ++i) {
    *late.Add() = c.subject.members[i];
  }
  if (!one_ends(late)) return false;
  spdlog::info("looks again, since a process has ended: {}", refused.message());
  return true;
}

Status examine_frozen(Course& c) {
  const std::vector<pid_t> tree = procfs::stopped_tree(c.subject.processes->pid());
  GCR_TRY(follow_members(c, tree));
  return share_out(tree.size(), kMostLooks, [&](std::size_t i) -> Status {
    const auto before = c.subject.confinements.find(tree[i]);
    if (before != c.subject.confinements.end())
      return preflight::examine_again(tree[i], before->second);
    const auto stat = procfs::read_stat(tree[i]);
    if (!stat || procfs::has_ended(*stat) || procfs::is_exiting(*stat)) return {};
    return Error(Code::kRefused, fmt::format("process {} was not examined", tree[i]));
  });
}

/// The migration survives this worker from here on. Nothing was done to the process yet.
Status begin(Course& c) {
  Subject& subject = c.subject;
  journal::Began began = description(c);
  if (c.target != nullptr) began.set_peer(c.target->name());
  GCR_TRY(begin_journal(c.run, std::move(began)));
  subject.driver = std::move(subject.found->host.driver);
  subject.command = subject.found->members.front().command();
  for (const proto::ProcessFacts& member : subject.found->members) {
    subject.resident_bytes += member.resident_bytes();
  }
  subject.job = std::move(subject.found->job);
  subject.lister = std::move(subject.found->lister);
  subject.driver_alone = std::move(subject.found->driver_alone);
  subject.criu_plugin = std::move(subject.found->criu_plugin);
  c.run.report.set_processes(subject.job.members());
  c.run.report.set_gpu_processes(static_cast<std::uint32_t>(subject.found->gpu_users.size()));
  std::vector<GpuMember> gpu_members;
  for (preflight::GpuUser& user : subject.found->gpu_users) {
    const gpu::MemberId id{static_cast<std::uint32_t>(user.member)};
    const journal::ProcessId& member = subject.members[static_cast<int>(user.member)];
    GCR_ASSIGN(auto process, procfs::Process::open(member.pid(), member.start_time()));
    auto control = subject.driver->control(member.pid());
    gpu_members.push_back({id, std::move(process), std::move(user.access), std::move(control)});
  }
  subject.processes.emplace(*subject.handle, std::move(gpu_members),
                            finish::group_of(c.run.log->journal()));
  subject.found.reset();
  GCR_TRY(announce(c.run));
  GCR_TRY(check_alone(c));
  return fault::point("source.began");
}

}  // namespace gcr::migration::source
