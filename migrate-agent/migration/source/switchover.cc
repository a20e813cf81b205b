// The source with the gate closed: the last round, at the same time checkpoint and dump, and the
// restore at the target, up to its vote.
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <map>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/criu/threads/settings.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/preflight/examine/shared_vram.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "migrate-agent/process/inspect/removed_files.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "migrate-agent/process/pages/zero_pages.h"
#include "src/base/log.h"
#include "src/base/side_by_side.h"

namespace gcr::migration::source {
namespace {

constexpr std::chrono::seconds kLockTimeout{10};
/// For so long a job stands still for processes that are about to end.
constexpr std::chrono::seconds kLastTransience{1};

Status send_last_round(Course& c) {
  const auto began = Clock::now();
  Precopy& precopy = *c.copying.precopy;
  if (!c.request.strict()) GCR_TRY(precopy.look());  // else close_gate() has looked
  GCR_TRY(precopy.send_last());
  c.run.report.set_buffers(c.copying.vram->count());
  c.run.report.set_vram_bytes(c.copying.vram->total_bytes());
  c.copying.digests = c.copying.vram->digests();
  c.account.last_round_took = Clock::now() - began;
  return {};
}

}  // namespace

/// What stays with an outsider would be another memory from now on.
Status check_sharers(const Course& c, const std::vector<pid_t>& members) {
  const auto sharers = preflight::find_sharers(c.subject.lister.shared(), members);
  if (sharers.empty()) return {};
  return Error(Code::kRefused, sharers.front());
}

namespace {

/// What a stopped process is and has; its threads are among those that were dumped.
Result<proto::DumpedMember> describe(pid_t pid, const std::vector<process::NamedFile>& named,
                                     const std::vector<process::ThreadRights>& dumped) {
  proto::DumpedMember member;
  for (const process::ThreadRights& thread : dumped) {
    if (thread.pid == pid) *member.add_credentials() = thread.rights;
  }
  GCR_ASSIGN(const pid_t inner, process::pid_in_namespace(pid));
  member.set_pid_in_namespace(inner);
  for (const process::NamedFile& file : named) *member.add_named() = file.fact;
  return member;
}

/// Removed files are in the images with their content.
Status check_removed_files(pid_t pid) {
  findings::Findings findings(findings::Side::kSource);
  GCR_TRY(process::look_at_removed_files(pid, findings));
  if (!findings.has_blocker()) return {};
  return Error(Code::kRefused, fmt::format("in process {}: {}", process::describe_process(pid),
                                           findings::reason_of(findings.list())));
}

/// What they and their threads have set for themselves. What confines them and cannot be carried
/// was a blocker, if it was there then.
Status add_settings(Course& c) {
  const cgroups::Group& group = c.subject.processes->group();
  std::vector<pid_t> pids;
  for (const procfs::Process& process : c.copying.stopped) pids.push_back(process.pid());
  auto observed =
      criu::read_settings(pids, {[&] { return group.thaw(); }, [&] { return group.freeze(); },
                                 !group.directory_for_criu().empty()});
  findings::Findings findings(findings::Side::kSource);
  if (!observed && observed.error().code() == Code::kUnsupported) {
    c.run.report.add_notes("settings of the process are not carried: " +
                           observed.error().message());
    return {};
  }
  if (!observed) return observed.error();
  const auto& accepted = c.request.accepted();
  for (std::size_t i = 0; i < pids.size(); ++i) {
    criu::Observed& one = (*observed)[i];
    const std::string who = process::describe_process(pids[i]);
    for (proto::Setting& setting : one.settings) {
      if (std::ranges::find(accepted, findings::kind_of(findings::kMdwe).id) != accepted.end())
        setting.set_needed(false);
      *c.copying.members[i].add_settings() = std::move(setting);
    }
    if (!one.in_landlock.empty()) {
      findings.add(findings::kLandlock,
                   fmt::format("{} threads of process {} are in a domain of Landlock",
                               one.in_landlock.size(), who));
    }
    if (one.has_keyrings) {
      findings.add(findings::kKeyring,
                   fmt::format("process {} has keyrings of its own, or its threads", who));
    }
  }
  findings.accept(accepted);
  return judge(c.run, findings.list());
}

/// All that the dump has stopped.
Status describe_dumped(Course& c) {
  const std::vector<pid_t> tree = procfs::stopped_tree(c.subject.processes->pid());
  // Of what was not frozen before, somebody may have been born, or become another, since the look.
  const bool was_frozen = !c.subject.processes->group().directory_for_criu().empty();
  if (!was_frozen) GCR_TRY(follow_members(c, tree));
  std::map<pid_t, std::vector<process::NamedFile>> named;
  std::vector<memory_files::Member> members;
  for (const pid_t pid : tree) {
    const auto id = std::ranges::find(c.subject.members, pid, &journal::ProcessId::pid);
    if (id == c.subject.members.end() || procfs::state(std::to_string(pid)) == 'Z') continue;
    GCR_ASSIGN(auto process, procfs::Process::open(pid, id->start_time()));
    GCR_TRY(check_removed_files(pid));
    GCR_ASSIGN(named[pid], process::named_files(pid));
    GCR_ASSIGN(auto member, describe(pid, named[pid], c.copying.threads));
    members.push_back({pid, named[pid]});
    c.copying.stopped.push_back(std::move(process));
    c.copying.members.push_back(std::move(member));
  }
  c.run.report.set_processes(static_cast<std::uint32_t>(c.copying.members.size()));
  GCR_TRY(c.run.phases.time("process", "read settings", [&] { return add_settings(c); }));
  return c.run.phases.time("images", "read files in memory",
                           [&] { return carry_memory_files(c, members); });
}

/// CRIU says neither whose file of the GPU driver it met, nor which one.
Error explain(const Course& c, Error dump_failed) {
  for (const pid_t pid : journal::pids_of(c.subject.members)) {
    const auto file = process::driver_file_in_use(pid);
    if (!file) continue;
    return Error(dump_failed.code(), fmt::format("{}; process {} has {}", dump_failed.message(),
                                                 process::describe_process(pid), *file));
  }
  return dump_failed;
}

Result<std::vector<process::ThreadRights>> dump(Course& c) {
  GCR_TRY(name_memory_files(c));
  auto dumped = c.copying.images->dump(
      *c.subject.processes,
      {[&c] {
         return c.run.phases.time("process", "look again", [&] { return examine_frozen(c); });
       },
       [&c, end = Clock::now() + kLastTransience](const Error& refused) {
         return is_transient(c, refused, end);
       }},
      *c.copying.sink, c.copying.renamed);
  const Status unnamed = unname_memory_files(c);
  if (!dumped) return explain(c, dumped.error());
  GCR_TRY(unnamed);
  return dumped;
}

/// Nobody may have begun to share memory with a member of which nothing tells.
Status check_unseen(const Course& c) {
  const pid_t alone = c.subject.processes->driver_alone();
  if (alone == 0) return {};
  for (const pid_t pid : procfs::tree(alone)) {
    if (pid == alone || procfs::is_in_vfork(pid)) continue;
    const auto file = process::driver_file_in_use(pid);
    if (!file) continue;
    return Error(Code::kRefused, fmt::format("process {}, which was forked meanwhile, has {}",
                                             process::describe_process(pid), *file));
  }
  findings::Findings findings(findings::Side::kSource);
  preflight::check_unseen_memory(journal::pids_of(c.subject.members), c.subject.lister.shared(),
                                 findings);
  if (!findings.has_blocker()) return {};
  return Error(Code::kRefused, findings::reason_of(findings.list()));
}

/// What the driver would checkpoint and not restore was let go of in the detach. If the kernel
/// still shows some of it, nothing is checkpointed.
Status check_let_go(Course& c) {
  for (const GpuMember& member : c.subject.processes->gpu_members()) {
    const pid_t pid = member.process.pid();
    const std::size_t left = process::unexplained_descriptors(pid);
    if (left == 0) continue;
    return Error(Code::kRefused,
                 fmt::format("process {} has {} descriptors of GPU memory that nobody accounts for "
                             "(/dev/nvidiactl): the driver may not restore it",
                             process::describe_process(pid), left));
  }
  return {};
}

}  // namespace

Status take_control_state(Course& c) {
  worker::Phases& phases = c.run.phases;
  SourceJob& processes = *c.subject.processes;
  GCR_TRY(phases.time("process", "arm keeper", [&] { return arm_keeper(c); }));
  GCR_TRY(phases.time("process", "detach VRAM", [&] { return processes.detach(); }));
  GCR_TRY(fault::point("source.detached"));
  GCR_TRY(phases.time("process", "control checkpoint", [&]() -> Status {
    GCR_TRY(processes.lock(kLockTimeout));
    GCR_TRY(fault::point("source.locked"));
    GCR_TRY(check_unseen(c));
    GCR_TRY(check_let_go(c));
    return processes.checkpoint();
  }));
  return fault::point("source.checkpointed");
}

Status send_images(Course& c) {
  Copying& copying = c.copying;
  GCR_ASSIGN(copying.threads, c.run.phases.time("process", "criu dump", [&] { return dump(c); }));
  GCR_TRY(c.run.phases.time("process", "read files", [&] { return describe_dumped(c); }));
  GCR_TRY(fault::point("source.dumped"));
  GCR_ASSIGN(copying.sent,
             c.run.phases.time("images", "flush images", [&] { return copying.sink->finish(); }));
  proto::MigrateReport& report = c.run.report;
  report.set_image_bytes(copying.sent.raw_bytes);
  report.set_memory_image_bytes(copying.sent.memory_bytes);
  report.set_early_image_bytes(copying.images->early_bytes());
  report.set_sent_image_bytes(copying.sent.sent_bytes);
  report.set_compression(std::string(store::to_string(copying.sent.codec)));
  report.set_image_mode(copying.images->in_rounds() ? "rounds" : "stream");
  report.set_image_mode_reason(copying.images->reason());
  return {};
}

namespace {

Status send_control_state(Course& c) {
  const auto began = Clock::now();
  worker::Phases& phases = c.run.phases;
  SourceJob& processes = *c.subject.processes;
  Copying& copying = c.copying;
  GCR_TRY(take_control_state(c));
  const auto dropped = phases.time("process", "drop zero pages", [&] {
    return side_by_side(processes.gpu_members(), [&copying](GpuMember& member) -> Status {
      if (member.access->is_driver_alone()) return {};  // nobody drops them: they are not sent
      const pid_t pid = member.process.pid();
      auto separate = copying.images->private_memory();
      const auto dropped = process::drop_zero_pages(*member.access, member.process,
                                                    separate.of(pid), copying.images->known(pid));
      if (!dropped) return dropped.error();
      return {};
    });
  });
  // Pages that were not dropped are moved.
  if (!dropped) spdlog::warn("pages of zeros stay: {}", dropped.error().message());
  GCR_TRY(send_images(c));
  c.account.control_took = Clock::now() - began;
  return {};
}

}  // namespace

Status switch_over(Course& c) {
  const worker::Phases::Timer timer(c.run.phases, "course", "switchover");
  // The mover holds VRAM, so its last round runs in parallel with the steps on the process.
  const std::vector<pid_t> members = journal::pids_of(c.subject.members);
  auto last_round = std::async(std::launch::async, [&c, &members]() -> Status {
    GCR_TRY(send_last_round(c));
    return check_sharers(c, members);
  });
  const Status control_sent = send_control_state(c);
  const Status vram_sent = last_round.get();
  // A destination that fails gives the reason on the control channel; its data connections only
  // break.
  GCR_TRY(control_sent);
  GCR_TRY(vram_sent);
  GCR_TRY(fault::point("source.flushed"));
  return c.run.worker.cancellation.check();
}

namespace {

proto::RestoreRequest restore_request(Course& c, std::uint64_t& chunks) {
  proto::RestoreRequest request;
  for (const auto& [id, digests] : c.copying.digests) {
    proto::BufferDigests& out = *request.add_digests();
    out.set_buffer_id(id.value);
    out.set_digests(digests.data(), digests.size() * sizeof(digest::Digest));
    chunks += digests.size();
  }
  add_files(c.copying.sent, request);
  for (proto::DumpedMember& member : c.copying.members) *request.add_members() = std::move(member);
  return request;
}

}  // namespace

Status restore(Course& c) {
  GCR_TRY(await_vote(c.run));
  GCR_TRY(fault::point("source.awaiting"));
  return ask_for_vote(c);
}

Status ask_for_vote(Course& c) {
  std::uint64_t chunks = 0;
  const proto::RestoreRequest request = restore_request(c, chunks);
  c.run.console.tell("restore", c.request.has_checkpoint()
                                    ? fmt::format("completing {}", c.request.checkpoint().name())
                                    : fmt::format("restoring at {}", c.target->name()));
  GCR_TRY(migration::ask_for_vote(c.run, *c.target, request, chunks));
  return fault::point("source.voted");
}

/// The stopped processes still exist, and nobody has cancelled.
Status last_look(Course& c) {
  GCR_TRY(c.run.worker.cancellation.check());
  if (std::ranges::none_of(c.copying.stopped, &procfs::Process::is_ending)) return {};
  return Error(Code::kNotFound, "the process ended while it was moved");
}

}  // namespace gcr::migration::source
