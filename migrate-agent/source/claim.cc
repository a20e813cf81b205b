// Nobody else moves the process from here on.
#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/fault/fault.h"
#include "migrate-agent/journal/journal_files.h"
#include "migrate-agent/settlement/records.h"
#include "migrate-agent/source/course.h"

namespace gcr::agent::source {
namespace {

/// A daemon that was started after the process was claimed knows of no claim, and may have let
/// somebody else have the process. Whoever is at a migration has a name by now: of two, the later
/// one at least sees the other.
Status check_alone(const Course& c) {
  namespace fs = std::filesystem;
  const Config& config = c.worker.config;
  std::error_code error;
  for (const auto& name : fs::directory_iterator(config.runtime_dir / "workers", error)) {
    const auto other = journal::entry_of(name.path());
    if (!other || other->role != journal::Began::SOURCE || other->migration == c.order.migration) {
      continue;
    }
    const auto contents =
        journal::peek(journal::path_of(config.state_dir, other->migration, other->role));
    if (!contents || contents->damage || !journal::unfinished(contents->records)) continue;
    for (const journal::ProcessId& theirs : contents->records.front().began().members()) {
      const auto is_theirs = [&theirs](const journal::ProcessId& ours) {
        return ours.pid() == theirs.pid() && ours.start_time() == theirs.start_time();
      };
      if (std::ranges::none_of(c.subject.members, is_theirs)) continue;
      return Error(Code::kRefused, fmt::format("migration {} has process {}",
                                               other->migration.to_string(), theirs.pid()));
    }
  }
  return {};
}

}  // namespace

/// What is refused after that leaves no journal.
Status claim(Course& c) {
  const pid_t pid = c.order.request.pid();
  GCR_ASSIGN(c.target, c.find_target(c.order));
  c.interrupting = c.worker.cancellation.on_request(
      [&c] { c.target->interrupt(c.worker.cancellation.check().error()); });
  GCR_ASSIGN(c.subject.claimed, c.worker.permissions.check_process(pid));
  c.subject.members.Add()->set_pid(pid);
  c.subject.members[0].set_start_time(c.subject.claimed.start_time);
  GCR_TRY(on_io(c.worker.io, c.worker.daemon.claim_processes(c.order.migration, c.subject.members,
                                                             c.worker.channel.peer().common_name)));
  GCR_ASSIGN(c.subject.handle, procfs::Process::open(pid, c.subject.claimed.start_time));
  return {};
}

/// Makes the migration one that survives this worker: a journal, and a name by which others reach
/// it. Nothing was done to the process yet.
Status begin(Course& c) {
  Subject& subject = c.subject;
  journal::Began began = description(c);
  began.set_peer(c.target->name());
  GCR_ASSIGN(c.account.log, commit::SourceLog::create(c.worker.config.state_dir, c.order.migration,
                                                      std::move(began)));
  subject.driver = std::move(subject.found->host.driver);
  subject.facts = std::move(subject.found->process);
  std::vector<LocalAllocation> local;
  for (const auto& [id, allocation] : subject.found->inventory) local.push_back(allocation);
  (void)subject.job.follow(job::kRoot, local);
  subject.process.emplace(*subject.driver, *subject.handle, std::move(subject.found->access),
                          settlement::group_of(c.account.log->journal()));
  subject.found.reset();
  GCR_TRY(on_io(c.worker.io,
                [&] { return c.worker.line.open(c.order.migration, journal::Began::SOURCE); }));
  GCR_TRY(check_alone(c));
  proto::Envelope started;
  started.mutable_started()->set_migration_id(to_bytes(c.order.migration));
  c.console.tell(std::move(started));
  return fault::point("source.began");
}

}  // namespace gcr::agent::source
