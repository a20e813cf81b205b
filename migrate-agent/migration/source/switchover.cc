// The switchover at the source, with the gate closed, up to the target's vote.
//
// Two sequences run concurrently, since the mover holds the VRAM independently of the process. One
// digests VRAM and sends the last round. The other takes the process apart: gives VRAM to the
// keeper, detaches it, lets the driver checkpoint the control state, dumps the process with CRIU
// and sends its images. If one fails, the target's channel is cancelled, which ends the other
// (send_both()). Checks that need a stopped process run as soon as it is stopped: shared GPU
// memory, removed files, and confinement, all of which may have changed since preflight. Finally
// the target votes, and the dumped processes must still exist.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <thread>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/criu/sockets/socket_options.h"
#include "migrate-agent/criu/threads/settings.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/process/inspect/access.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/files.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "migrate-agent/process/pages/zero_pages.h"
#include "src/base/log.h"
#include "src/base/side_by_side.h"

namespace gcr::migration::source {
namespace {

constexpr std::chrono::seconds kLockTimeout{10};
/// How long the job stays stopped to wait for processes that are about to end.
constexpr std::chrono::seconds kLastTransience{1};
constexpr std::chrono::milliseconds kConnectionPause{2};

Status send_last_round(Prepared& p) {
  const auto began = Clock::now();
  // A strict migration has digested VRAM when it closed the gate.
  if (!p.begun.course.request.strict()) GCR_TRY(p.precopy.find_dirty());
  GCR_TRY(p.precopy.send(nullptr));
  p.begun.course.run.report.set_buffers(p.vram->outgoing.count());
  p.begun.course.run.report.set_vram_bytes(p.vram->outgoing.total_bytes());
  p.last_round_took = Clock::now() - began;
  return {};
}

/// The credentials and files of a stopped process, whose threads are among the dumped ones.
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

/// Checks the removed files of a process; the images contain their content.
Status check_removed_files(pid_t pid) {
  findings::Findings findings(findings::Side::kSource);
  GCR_TRY(process::look_at_removed_files(pid, findings));
  if (!findings.has_blocker()) return {};
  return Error(Code::kRefused, fmt::format("in process {}: {}", process::describe_process(pid),
                                           findings::reason_of(findings.list())));
}

/// The members that the dump has stopped.
struct Stopped {
  std::vector<Member*> members;
  std::vector<pid_t> pids;

  explicit Stopped(Members& all) {
    for (Member& member : all) {
      if (!member.dumped) continue;
      members.push_back(&member);
      pids.push_back(member.pid());
    }
  }
};

Status add_socket_options(Begun& begun) {
  const Stopped stopped(begun.claimed.members);
  GCR_ASSIGN(auto options, criu::read_socket_options(stopped.pids));
  for (std::size_t i = 0; i < options.size(); ++i) {
    *stopped.members[i]->dumped->mutable_socket_options() = std::move(options[i]);
  }
  return {};
}

/// Adds the settings that the dumped members and their threads have made for themselves. A
/// confinement that cannot be carried is a blocker; preflight has found those that existed then.
Status add_settings(Begun& begun) {
  Run& run = begun.course.run;
  const cgroups::Group& group = begun.processes.group();
  const Stopped stopped(begun.claimed.members);
  auto observed = criu::read_settings(stopped.pids,
                                      {[&] { return group.thaw(); }, [&] { return group.freeze(); },
                                       !group.directory_for_criu().empty()});
  findings::Findings findings(findings::Side::kSource);
  if (!observed && observed.error().code() == Code::kUnsupported) {
    run.report.add_notes("settings of the process are not carried: " + observed.error().message());
    return {};
  }
  if (!observed) return observed.error();
  const auto& accepted = begun.course.request.accepted();
  for (std::size_t i = 0; i < stopped.pids.size(); ++i) {
    criu::Observed& member = (*observed)[i];
    const std::string who = process::describe_process(stopped.pids[i]);
    for (proto::Setting& setting : member.settings) {
      if (std::ranges::find(accepted, findings::kind_of(findings::kMdwe).id) != accepted.end())
        setting.set_needed(false);
      *stopped.members[i]->dumped->add_settings() = std::move(setting);
    }
    if (!member.in_landlock.empty()) {
      findings.add(findings::kLandlock,
                   fmt::format("{} threads of process {} are in a Landlock domain",
                               member.in_landlock.size(), who));
    }
    if (member.has_keyrings) {
      findings.add(findings::kKeyring,
                   fmt::format("process {}, or one of its threads, has a keyring of its own", who));
    }
  }
  findings.accept(accepted);
  return judge(run, findings.list());
}

/// Sends the last changes of the container's files. Memory files of the job are carried by
/// themselves; what members have mapped shared may have changed without a trace.
Status send_layers(Begun& begun, Images& images, const std::vector<memory_files::Member>& members) {
  if (!begun.in_container()) return {};
  layer::KnownFiles known;
  for (const memory_files::OutgoingFile& file : memory_files::find(members).files) {
    known.left_out.insert({file.fact.device(), file.fact.inode()});
  }
  for (const memory_files::Member& member : members) {
    for (const process::Mapping& mapping : process::named_mappings(member.pid)) {
      if (!mapping.shared || !mapping.writable) continue;
      known.mapped.insert(
          procfs::id_of(fmt::format("/proc/{}/map_files/{}", member.pid, mapping.range)));
    }
  }
  GCR_TRY(images.layers.send(*images.sink, known));
  for (const std::string& note : images.layers.notes()) begun.course.run.report.add_notes(note);
  return {};
}

/// Describes all members that the dump has stopped. `threads`: the rights of the dumped threads.
Status describe_dumped(Begun& begun, Images& images,
                       const std::vector<process::ThreadRights>& threads) {
  Run& run = begun.course.run;
  const std::vector<pid_t> tree = procfs::stopped_tree(begun.processes.pid());
  // Processes that were not frozen may have been started, or executed a program, since the check.
  const bool was_frozen = !begun.processes.group().directory_for_criu().empty();
  if (!was_frozen) GCR_TRY(follow_members(begun, tree));
  std::map<pid_t, std::vector<process::NamedFile>> named;
  std::vector<memory_files::Member> with_files;
  for (Member& member : begun.claimed.members) {
    const pid_t pid = member.pid();
    if (std::ranges::find(tree, pid) == tree.end() || member.process.has_ended()) continue;
    GCR_TRY(check_removed_files(pid));
    GCR_ASSIGN(named[pid], process::named_files(pid));
    GCR_ASSIGN(member.dumped, describe(pid, named[pid], threads));
    with_files.push_back({pid, named[pid]});
  }
  run.report.set_processes(static_cast<std::uint32_t>(with_files.size()));
  GCR_TRY(run.phases.time("process", "read settings", [&]() -> Status {
    GCR_TRY(add_socket_options(begun));
    return add_settings(begun);
  }));
  GCR_TRY(run.phases.time("images", "read files in memory",
                          [&] { return carry_memory_files(begun, *images.sink, with_files); }));
  return run.phases.time("images", "read layers",
                         [&] { return send_layers(begun, images, with_files); });
}

/// Adds the process and the file of the GPU driver to the error of a dump: CRIU names neither.
Error explain(const Members& members, Error dump_failed) {
  for (const Member& member : members) {
    const auto file = process::driver_file_in_use(member.pid());
    if (!file) continue;
    return Error(dump_failed.code(), fmt::format("{}; process {} has {}", dump_failed.message(),
                                                 process::describe_process(member.pid()), *file));
  }
  return dump_failed;
}

/// The last steps before CRIU stops the frozen job.
Status before_dump(Begun& begun) {
  worker::Phases& phases = begun.course.run.phases;
  GCR_TRY(phases.time("process", "look again", [&] { return examine_frozen(begun); }));
  if (!begun.course.run.began.has_network()) return {};
  return phases.time("process", "take network down",
                     [&] { return take_network_down(begun.course.run); });
}

/// Whether before_dump() may succeed if the job runs for a moment. Connections pass in less.
bool may_succeed_later(const Begun& begun, const Error& refused, Clock::time_point end) {
  if (refused.code() != Code::kUnavailable) return is_transient(begun.claimed, refused, end);
  std::this_thread::sleep_for(kConnectionPause);
  return Clock::now() < end;
}

Result<std::vector<process::ThreadRights>> dump(Begun& begun, Images& images) {
  GCR_ASSIGN(const auto renamed, name_memory_files(begun));
  auto dumped =
      images.outgoing.dump(begun.processes,
                           {[&begun] { return before_dump(begun); },
                            [&begun, end = Clock::now() + kLastTransience](const Error& refused) {
                              return may_succeed_later(begun, refused, end);
                            }},
                           *images.sink, renamed);
  const Status unnamed = unname_memory_files(begun, renamed);
  if (!dumped) return explain(begun.claimed.members, dumped.error());
  GCR_TRY(unnamed);
  return dumped;
}

/// Checks the sharing of GPU memory by a member without the preload library.
Status check_unseen(const Begun& begun) {
  const pid_t alone = begun.processes.driver_alone();
  if (alone == 0) return {};
  for (const pid_t pid : procfs::tree(alone)) {
    if (pid == alone || procfs::is_in_vfork(pid)) continue;
    const auto file = process::driver_file_in_use(pid);
    if (!file) continue;
    return Error(Code::kRefused,
                 fmt::format("process {}, which was forked after the job was examined, has {}",
                             process::describe_process(pid), *file));
  }
  findings::Findings findings(findings::Side::kSource);
  preflight::check_unseen_memory(pids_of(begun.claimed.members), begun.lister.shared(), findings);
  if (!findings.has_blocker()) return {};
  return Error(Code::kRefused, findings::reason_of(findings.list()));
}

/// Checks that the members hold no GPU memory that the driver would checkpoint but not restore. The
/// members released it in the detach; if the kernel still shows some, nothing is checkpointed.
Status check_released(const Begun& begun) {
  for (const Member* member : begun.processes.gpu_members()) {
    const std::size_t left = process::unexplained_descriptors(member->pid());
    if (left == 0) continue;
    return Error(Code::kRefused,
                 fmt::format("process {} has {} descriptors of GPU memory that no allocation "
                             "explains (/dev/nvidiactl): the driver may not restore it",
                             process::describe_process(member->pid()), left));
  }
  return {};
}

/// Drops pages of zeros from the memory of GPU members; pages that cannot be dropped are moved.
void drop_zero_pages(Prepared& p) {
  const auto dropped = p.begun.course.run.phases.time("process", "drop zero pages", [&p] {
    return side_by_side(p.begun.processes.gpu_members(), [&p](Member* member) -> Status {
      if (member->access->is_driver_alone()) return {};  // it has no door to drop them
      const auto dropped = process::drop_zero_pages(
          *member->access, member->process, p.images.outgoing.private_memory().of(member->pid()),
          p.images.outgoing.known(member->pid()));
      if (!dropped) return dropped.error();
      return {};
    });
  });
  if (!dropped) {
    spdlog::warn("cannot drop pages of zeros, so they are moved: {}", dropped.error().message());
  }
}

Status send_control_state(Prepared& p, proto::RestoreRequest& request) {
  const auto began = Clock::now();
  GCR_TRY(take_control_state(p.begun, *p.vram));
  drop_zero_pages(p);
  GCR_TRY(send_images(p.begun, p.images, request));
  p.control_took = Clock::now() - began;
  return {};
}

}  // namespace

/// A migration would break the sharing with a process outside the job.
Status check_sharers(const Begun& begun, const std::vector<pid_t>& members) {
  const auto sharers = preflight::find_sharers(begun.lister.shared(), members);
  if (sharers.empty()) return {};
  return Error(Code::kRefused, sharers.front());
}

Status take_control_state(Begun& begun, TakenVram& vram) {
  worker::Phases& phases = begun.course.run.phases;
  SourceJob& processes = begun.processes;
  GCR_TRY(phases.time("process", "arm keeper", [&] { return arm_keeper(begun, vram); }));
  GCR_TRY(phases.time("process", "detach VRAM", [&] { return processes.detach(); }));
  GCR_TRY(fault::point("source.detached"));
  GCR_TRY(phases.time("process", "control checkpoint", [&]() -> Status {
    GCR_TRY(processes.lock(kLockTimeout));
    GCR_TRY(fault::point("source.locked"));
    GCR_TRY(check_unseen(begun));
    GCR_TRY(check_released(begun));
    return processes.checkpoint();
  }));
  return fault::point("source.checkpointed");
}

Status send_images(Begun& begun, Images& images, proto::RestoreRequest& request) {
  Run& run = begun.course.run;
  GCR_ASSIGN(const auto threads,
             run.phases.time("process", "criu dump", [&] { return dump(begun, images); }));
  GCR_TRY(run.phases.time("process", "read files",
                          [&] { return describe_dumped(begun, images, threads); }));
  GCR_TRY(fault::point("source.dumped"));
  GCR_ASSIGN(const images::SentImages sent,
             run.phases.time("images", "flush images", [&] { return images.sink->finish(); }));
  add_files(sent, request);
  for (proto::Layer& layer : images.layers.sent()) *request.add_layers() = std::move(layer);
  for (const Member& member : begun.claimed.members) {
    if (member.dumped) *request.add_members() = *member.dumped;
  }
  proto::MigrateReport& report = run.report;
  report.set_image_bytes(sent.raw_bytes);
  report.set_memory_image_bytes(sent.memory_bytes);
  report.set_early_image_bytes(images.outgoing.early_bytes());
  report.set_sent_image_bytes(sent.sent_bytes);
  report.set_compression(std::string(store::to_string(sent.codec)));
  report.set_image_mode(images.outgoing.in_rounds() ? "rounds" : "stream");
  report.set_image_mode_reason(images.outgoing.reason());
  return {};
}

Result<Sent> switch_over(Prepared& prepared) {
  Run& run = prepared.begun.course.run;
  const worker::Phases::Timer timer(run.phases, "course", "switchover");
  // The mover holds VRAM, so its last round runs concurrently with the steps on the process.
  const std::vector<pid_t> members = pids_of(prepared.begun.claimed.members);
  Sent sent;
  GCR_TRY(send_both(
      *prepared.begun.claimed.target,
      [&]() -> Status {
        GCR_TRY(send_last_round(prepared));
        return check_sharers(prepared.begun, members);
      },
      [&] { return send_control_state(prepared, sent.request); }));
  add_digests(prepared.vram->outgoing.digests(), sent.request);
  GCR_TRY(fault::point("source.flushed"));
  GCR_TRY(run.worker.cancellation.check());
  return sent;
}

Result<Vote> ask_for_vote(const Claimed& claimed, const Sent& sent) {
  auto& [run, find_target, request] = claimed.course;
  run.console.tell("restore", request.has_checkpoint()
                                  ? fmt::format("completing {}", request.checkpoint().name())
                                  : fmt::format("restoring at {}", claimed.target->name()));
  GCR_ASSIGN(Vote vote, migration::ask_for_vote(run, *claimed.target, sent));
  GCR_TRY(fault::point("source.voted"));
  GCR_TRY(run.worker.cancellation.check());
  return vote;
}

Status check_still_stopped(const Claimed& claimed) {
  const bool ended = std::ranges::any_of(claimed.members, [](const Member& member) {
    return member.dumped && member.process.is_ending();
  });
  if (ended) return Error(Code::kNotFound, "a process of the job ended during the migration");
  return {};
}

}  // namespace gcr::migration::source
