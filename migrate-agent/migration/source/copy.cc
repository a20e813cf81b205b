// The source while the process runs: rounds, the pause before the switchover, and the closing of
// the gate.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/gpu/access/throttle.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/migration/source/transient.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "src/base/units.h"

namespace gcr::migration::source {
namespace {

using std::chrono::seconds;

constexpr seconds kGateTimeout{10};
/// Pause between two rounds of a paused migration; doubled after each.
constexpr seconds kFirstPause{2};
constexpr seconds kLongestRest{60};
/// A paused migration waits at least this many times as long as its last round took.
constexpr int kRestPerRound = 9;

store::Compression to_compression(proto::Compression compression) {
  switch (compression) {
    case proto::COMPRESSION_NONE:
      return store::Compression::kNone;
    case proto::COMPRESSION_LZ4:
      return store::Compression::kLz4;
    case proto::COMPRESSION_ZSTD:
      return store::Compression::kZstd;
    default:
      return store::Compression::kAuto;
  }
}

}  // namespace

Status open_image_sink(Course& c) {
  if (c.copying.sink != nullptr) return {};
  const double link_bytes_per_s = c.copying.precopy ? c.copying.precopy->convergence().rate() : 0;
  GCR_ASSIGN(c.copying.sink,
             c.target->image_sink(to_compression(c.request.compression()), link_bytes_per_s));
  return {};
}

namespace {

Status look(Course& c) {
  GCR_TRY(refresh_buffers(c));
  // CRIU is started before the digest: what takes time after it lets the process dirty more VRAM.
  if (!c.copying.images->prepared()) {
    const worker::Phases::Timer timer(c.run.phases, "images", "start CRIU");
    GCR_TRY(c.copying.images->prepare());
  }
  return c.copying.precopy->look();
}

Status image_round(Course& c) {
  const worker::Phases::Timer dumping(c.run.phases, "images", "images round");
  GCR_TRY(open_image_sink(c));
  return c.copying.images->round(*c.copying.sink);
}

/// While the round is sent, the process is throttled by this share.
Status copy_round(Course& c, double share_held) {
  Precopy& precopy = *c.copying.precopy;
  c.run.console.tell("precopy", fmt::format("round {}: sending {}", precopy.rounds().size() + 1,
                                            format_bytes(precopy.remaining_bytes())));
  gpu::Throttle throttle(c.subject.processes->gate());
  throttle.set_share(share_held);
  const Status sent = precopy.send(throttle);
  GCR_TRY(throttle.stop());
  GCR_TRY(sent);
  if (c.copying.images->in_rounds()) GCR_TRY(image_round(c));
  GCR_TRY(fault::point("source.copied"));
  return c.run.worker.cancellation.check();
}

/// Waits for an operator's ContinueRequest. Meanwhile rounds keep the destination up to date, so
/// rarely that they hardly load GPU and link.
Status pause(Course& c) {
  c.run.console.set_paused(true);
  c.target->tell_paused(true);
  c.run.console.tell(worker::kPausedPhase.data(),
                     "waiting for `gcr-migrate continue` before the switchover");
  Clock::duration rest = kFirstPause;
  while (!c.run.console.may_switch_over()) {
    GCR_TRY(c.run.worker.cancellation.check());
    if (!c.run.console.rest(rest)) continue;
    const auto began = Clock::now();
    GCR_TRY(look(c));
    if (c.copying.precopy->remaining_bytes() > 0) GCR_TRY(copy_round(c, 0));
    rest = std::max<Clock::duration>(std::min<Clock::duration>(2 * rest, kLongestRest),
                                     kRestPerRound * (Clock::now() - began));
  }
  c.run.console.set_paused(false);
  c.target->tell_paused(false);
  c.run.console.tell("precopy", "going on to the switchover");
  return c.run.worker.cancellation.check();
}

/// The expected downtime, for the report and for operators.
void begin_switchover(Course& c) {
  const Precopy& precopy = *c.copying.precopy;
  proto::MigrateReport& report = c.run.report;
  const double send_ms = precopy.expected_ms();
  const bool rate_is_known = precopy.remaining_bytes() == 0 || send_ms > 0;
  report.set_expected_send_ms(send_ms);
  report.set_expected_downtime_ms(
      c.account.steady.with_last_round_ms(precopy.digest_ms() + send_ms));
  report.set_expected_is_least(c.account.steady.is_least || !rate_is_known);
  c.run.console.begin_switchover(report.expected_downtime_ms(), report.expected_is_least());
}

/// A member without a door would keep the driver's files when it is dumped.
Status check_others_use_no_gpu(Course& c) {
  std::set<pid_t> users;
  for (const GpuMember& member : c.subject.processes->gpu_members()) {
    users.insert(member.process.pid());
  }
  for (const pid_t pid : journal::pids_of(c.subject.members)) {
    if (users.contains(pid) || procfs::is_in_vfork(pid)) continue;
    const auto file = process::driver_file_in_use(pid);
    if (!file) continue;
    return Error(Code::kRefused,
                 fmt::format("process {} began to use the GPU while it was moved: it has {}",
                             process::describe_process(pid), *file));
  }
  return {};
}

Status follow_members_in_time(Course& c) {
  for (const auto end = Clock::now() + kTransience;;) {
    const Status followed = follow_members(c, procfs::tree(c.request.pid()));
    if (followed || !is_transient(c, followed.error(), end)) return followed;
    GCR_TRY(c.run.worker.cancellation.check());
  }
}

}  // namespace

Status note_detaching(Course& c) {
  if (std::exchange(c.account.detaching_noted, true)) return {};
  GCR_TRY(arm_keeper(c));
  GCR_TRY(follow_members_in_time(c));
  GCR_TRY(check_others_use_no_gpu(c));
  SourceJob& process = *c.subject.processes;
  journal::Record record;
  journal::Detaching& detaching = *record.mutable_detaching();
  detaching.set_driver_alone(process.driver_alone());
  for (const journal::ProcessId& member : c.subject.members) {
    const auto home = process.group().home_of(member.pid());
    *detaching.add_homes() = home ? *home : std::string();
    *detaching.add_members() = member;
  }
  GCR_TRY(c.run.log->advance(commit::SourceEvent::kDetaching, std::move(record)));
  return process.enter_group();
}

namespace {

Status copy_rounds(Course& c) {
  const worker::Phases::Timer timer(c.run.phases, "course", "pre-copy");
  // From here on a failure reports that the process runs on, not that nothing was touched.
  c.run.report.set_source_touched(true);
  Precopy& precopy = *c.copying.precopy;
  c.run.console.begin_copying(c.target->channel());
  for (;;) {
    GCR_TRY(look(c));
    precopy.set_downtime_limit(c.run.console.limits().downtime_ms);
    GCR_ASSIGN(const auto next, precopy.decide());
    const double share_held = precopy.convergence().throttle();
    c.run.console.set_throttle(share_held);
    if (next == Convergence::Next::kRound) {
      GCR_TRY(copy_round(c, share_held));
    } else if (c.request.pause_before_switchover() && !c.run.console.may_switch_over()) {
      GCR_TRY(pause(c));
    } else if (c.copying.images->lacks_round()) {
      GCR_TRY(image_round(c));
    } else {
      c.run.report.set_switchover_reason(to_string(next));
      break;
    }
  }
  begin_switchover(c);
  GCR_TRY(open_image_sink(c));
  return note_detaching(c);
}

}  // namespace

Status hold_back(Course& c) {
  GCR_TRY(fault::point("source.closing"));
  c.run.console.tell("switchover", "closing the gate");
  c.account.gate_closed_at = Clock::now();
  c.run.console.set_gate_closed(c.account.gate_closed_at);
  c.run.report.set_gate_closed_ms(c.run.phases.since_origin_ms(*c.account.gate_closed_at));
  GCR_TRY(c.run.phases.time("process", "close gate", [&] {
    return c.subject.processes->close_gate(
        kGateTimeout, [&c](const std::string& what) { c.run.console.tell("switchover", what); });
  }));
  GCR_TRY(fault::point("source.gated"));
  return c.run.worker.cancellation.check();
}

namespace {

/// True if the switchover goes on; false if the gate is open again, for another round.
Result<bool> close_gate(Course& c) {
  GCR_TRY(hold_back(c));
  GCR_TRY(refresh_buffers(c));
  if (!c.request.strict()) return true;
  GCR_TRY(c.copying.precopy->look());
  if (c.copying.precopy->acceptable()) return true;
  GCR_TRY(c.subject.processes->open_gate());
  count_undone_closing(c);
  return false;
}

}  // namespace

/// Until the gate is closed, and what is left may be sent then.
Status copy(Course& c) {
  for (bool closed = false; !closed;) {
    GCR_TRY(copy_rounds(c));
    GCR_ASSIGN(closed, close_gate(c));
  }
  return {};
}

void count_undone_closing(Course& c) {
  auto& closed_at = c.account.gate_closed_at;
  if (!closed_at) return;
  const auto now = Clock::now();
  c.run.phases.add("course", "undone closing", *closed_at, now);
  c.account.undone_closings += now - *closed_at;
  closed_at.reset();
  c.run.console.set_gate_closed(closed_at);
}

}  // namespace gcr::migration::source
