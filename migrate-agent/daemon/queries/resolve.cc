// An operator's decision about a migration that no protocol can settle, because the other host is
// gone.
#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/daemon/queries/journals.h"
#include "migrate-agent/daemon/queries/requests.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using journal::Began;
using journal::Record;
using proto::OutcomeReply;

constexpr std::chrono::milliseconds kOwnerPatience = std::chrono::seconds(60);

bool can_be_resolved(const KnownJournal& known) {
  return known.is(commit::SourceState::kCommitted) || known.is(commit::DestinationState::kRestored);
}

/// Returns the journal that waits for the other agent.
Result<KnownJournal> find(const worker::WorkerContext& context, const Uuid& migration) {
  std::string states;
  std::optional<Error> unreadable;
  for (const journal::Role role : {Began::SOURCE, Began::DESTINATION}) {
    auto known = read_journal(context, migration, role);
    if (known && can_be_resolved(*known)) return known;
    if (known) {
      states +=
          fmt::format(" The {} here is {}.", journal::to_string(role), to_string(known->state));
    } else if (known.error().code() != Code::kNotFound) {
      unreadable = known.error();
    }
  }
  if (unreadable) return *unreadable;
  if (states.empty()) {
    return Error(Code::kNotFound,
                 fmt::format("this agent knows no migration {}", migration.to_string()));
  }
  states.pop_back();
  return Error(Code::kRefused,
               "only a source that is committed and a destination that is restored can be "
               "resolved." +
                   states);
}

proto::Envelope question_for(const KnownJournal& known) {
  proto::Envelope question;
  const std::string id = to_bytes(known.entry.migration);
  if (known.entry.role == Began::SOURCE) {
    // The reply to a commit may be acted on: the source is committed.
    question.mutable_commit_request()->set_migration_id(id);
  } else {
    question.mutable_outcome_request()->set_migration_id(id);
  }
  return question;
}

/// Returns whether an operator must still decide after the other agent's reply.
bool cannot_decide(const proto::Envelope& answer) {
  if (answer.has_outcome_reply()) return answer.outcome_reply().outcome() == OutcomeReply::UNKNOWN;
  if (!answer.has_failure()) return false;
  const Code code = control::from_failure(answer.failure()).code();
  return code == Code::kNotFound || code == Code::kRefused;
}

/// Succeeds if the other agent cannot be reached or cannot decide either.
Status check_peer_is_gone(const worker::WorkerContext& context, const KnownJournal& known) {
  GCR_ASSIGN(const auto peer, context.other_agent(known.began()));
  const proto::Envelope question = question_for(known);
  const auto answer =
      worker::on_io(context.io, control::ask(peer, known.entry.migration, question));
  if (answer && cannot_decide(*answer)) return {};
  const bool lost = !answer && (answer.error().code() == Code::kUnavailable ||
                                answer.error().code() == Code::kTimeout);
  if (lost) return {};
  return Error(
      Code::kRefused,
      fmt::format("the agent at {} replies, so it is not gone, and the two agents "
                  "settle the migration themselves{}",
                  known.began().peer(), answer ? "" : " (" + answer.error().message() + ")"));
}

/// Passes the decision to the journal's owner: there is a recovery, or one starts soon.
Status deliver(const worker::WorkerContext& context, const KnownJournal& known,
               const proto::ResolveRequest& request) {
  const bool run_here = request.decision() == proto::ResolveRequest::RUN_HERE;
  registry::ToWorker decide;
  decide.mutable_decide()->set_decision(run_here ? registry::Decide::RUN_HERE
                                                 : registry::Decide::DISCARD_HERE);
  decide.mutable_decide()->set_by(context.channel.peer().common_name);
  for (const auto end = Clock::now() + kOwnerPatience; Clock::now() < end;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    const auto acted = ask_owner(context, known.entry, decide, left);
    if (acted) return {};
    const Code code = acted.error().code();
    if (code != Code::kNotFound && code != Code::kUnavailable) return acted.error();
    GCR_ASSIGN(const KnownJournal now,
               read_journal(context, known.entry.migration, known.entry.role));
    const Record* resolved = now.last(Record::kResolved);
    if (resolved != nullptr && resolved->resolved().run_here() == run_here) return {};
    if (!can_be_resolved(now)) {
      return Error(Code::kRefused, fmt::format("the migration was settled meanwhile: it is {}",
                                               to_string(now.state)));
    }
    pause_before_next_poll();
  }
  return Error(Code::kTimeout, "no worker has accepted the decision in time; try again");
}

Status check(const proto::ResolveRequest& request) {
  if (!request.peer_is_gone()) {
    return Error(Code::kInvalidArgument,
                 "a migration is resolved by hand only if the other host is gone for good: confirm "
                 "that its copy of the process will never run again, or there would be two "
                 "running copies");
  }
  if (request.decision() != proto::ResolveRequest::RUN_HERE &&
      request.decision() != proto::ResolveRequest::DISCARD_HERE) {
    return Error(Code::kInvalidArgument,
                 "decide either to run the copy on this host or to discard it");
  }
  return {};
}

/// Returns the journal of `migration` that is damaged, if there is one.
std::optional<journal::Entry> find_damaged(const worker::WorkerContext& context,
                                           const Uuid& migration) {
  for (const journal::Role role : {Began::SOURCE, Began::DESTINATION}) {
    const auto known = read_journal(context, migration, role);
    if (!known && known.error().code() == Code::kDataLoss) {
      return journal::entry(context.config.state_dir, migration, role);
    }
  }
  return std::nullopt;
}

Result<journal::ProcessId> identify(pid_t pid) {
  const auto stat = procfs::read_stat(pid);
  if (!stat) return Error(Code::kNotFound, fmt::format("no process {}", pid));
  journal::ProcessId id;
  id.set_pid(pid);
  id.set_start_time(stat->start_time);
  return id;
}

Error which_process() {
  return {Code::kInvalidArgument,
          "the damaged journal no longer names its process: find the process on the "
          "host and pass it with --pid"};
}

/// Identifies a restored process and its parent, the init of its PID namespace.
Result<journal::Restored> identify_restored(pid_t pid) {
  if (pid <= 0) return which_process();
  journal::Restored restored;
  GCR_ASSIGN(*restored.add_members(), identify(pid));
  GCR_ASSIGN(*restored.mutable_init(),
             identify(std::atoi(procfs::status_field(std::to_string(pid), "PPid").c_str())));
  return restored;
}

Result<Record> began_of(const journal::Entry& entry, const std::vector<Record>& good, pid_t pid) {
  if (const Record* began = journal::last(good, Record::kBegan)) return *began;
  Record record;
  Began& began = *record.mutable_began();
  began.set_migration_id(to_bytes(entry.migration));
  began.set_role(entry.role);
  GCR_ASSIGN(*began.mutable_boot_id(), journal::boot_id());
  if (entry.role == Began::DESTINATION) return record;
  if (pid <= 0) return which_process();
  GCR_ASSIGN(*began.add_members(), identify(pid));
  return record;
}

/// Returns the last intact record of this kind, or an empty one.
Record good_or_empty(const std::vector<Record>& good, Record::BodyCase kind) {
  if (const Record* found = journal::last(good, kind)) return *found;
  Record record;
  const auto* field = Record::descriptor()->FindFieldByNumber(kind);
  Record::GetReflection()->MutableMessage(&record, field);
  return record;
}

/// Rebuilds the records up to the operator's decision; see PROTOCOL.md, "Resolve".
Result<std::vector<Record>> rebuild(const journal::Entry& entry, const std::vector<Record>& good,
                                    pid_t pid) {
  GCR_ASSIGN(Record began, began_of(entry, good, pid));
  std::vector<Record> records{std::move(began)};
  if (entry.role == Began::SOURCE) {
    if (const Record* keeper = journal::last(good, Record::kKeeperStarted)) {
      records.push_back(*keeper);
    }
    for (const auto kind : {Record::kDetaching, Record::kAwaiting, Record::kCommitted}) {
      records.push_back(good_or_empty(good, kind));
      if (kind != Record::kDetaching || journal::last(good, kind) != nullptr) continue;
      records.back().mutable_detaching()->set_driver_alone(-1);
    }
    return records;
  }
  Record vote = good_or_empty(good, Record::kRestored);
  if (vote.restored().members().empty()) {
    GCR_ASSIGN(*vote.mutable_restored(), identify_restored(pid));
  }
  records.push_back(std::move(vote));
  return records;
}

Record decision_of(const proto::ResolveRequest& request, const std::string& by) {
  Record record;
  record.mutable_resolved()->set_run_here(request.decision() == proto::ResolveRequest::RUN_HERE);
  record.mutable_resolved()->set_operator_name(by);
  record.mutable_resolved()->set_damaged(true);
  return record;
}

/// Applies an operator's decision to a migration whose journal is damaged. It has no owner, and no
/// agent knows what was decided, so an operator decides alone. The intact records name the
/// processes; the missing ones are written anew as if every step that may have happened had
/// happened, followed by the decision. Recovery does the rest when this worker ends.
/// kInvalidArgument if neither the journal nor `request` names the process.
Status resolve_damaged(worker::WorkerContext& context, const journal::Entry& entry,
                       const proto::ResolveRequest& request) {
  GCR_ASSIGN(const auto good, journal::salvage(entry.path));
  if (const Record* finished = journal::last(good, Record::kFinished)) {
    return Error(Code::kRefused, "nothing is left to decide; the damaged journal says: " +
                                     finished->finished().text());
  }
  GCR_ASSIGN(std::vector<Record> records, rebuild(entry, good, request.pid()));
  records.push_back(decision_of(request, context.channel.peer().common_name));
  // Claim the migration: recovery begins when this worker ends.
  const Began& began = records.front().began();
  GCR_TRY(worker::on_io(
      context.io,
      entry.role == Began::SOURCE
          ? context.daemon.claim_processes(entry.migration, began.members(), began.ordered_by())
          : context.daemon.register_migration(entry.migration, began.ordered_by())));
  return journal::rewrite(entry.path, std::move(records));
}

}  // namespace

Reply answer_resolve(worker::WorkerContext& context, const Uuid& migration,
                     const proto::ResolveRequest& request) {
  GCR_TRY(check(request));
  proto::Envelope reply;
  proto::ResolveReply& answer = *reply.mutable_resolve_reply();
  if (const auto damaged = find_damaged(context, migration)) {
    GCR_TRY(resolve_damaged(context, *damaged, request));
    answer.set_text("decided; the damaged journal is kept, and recovery continues");
    *answer.mutable_status() = status_of(*damaged, journal::read(damaged->path));
    return reply;
  }
  GCR_ASSIGN(const KnownJournal known, find(context, migration));
  GCR_TRY(check_peer_is_gone(context, known));
  GCR_TRY(deliver(context, known, request));
  GCR_ASSIGN(const KnownJournal now, read_journal(context, migration, known.entry.role));
  const Record* finished = now.last(Record::kFinished);
  answer.set_text(finished == nullptr ? "decided; the agent carries it out"
                                      : finished->finished().text());
  *answer.mutable_status() = status_of(now.entry, now.contents);
  return reply;
}

}  // namespace gcr::daemon
