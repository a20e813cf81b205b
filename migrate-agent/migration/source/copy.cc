// Pre-copy at the source, while the process runs, up to the closing of the gate.
//
// Each round takes over new allocations, digests all VRAM to find the dirty chunks, and asks
// Convergence what to do. As long as they do not fit the downtime limit, it sends them, throttled
// if auto-converge demands it. When they fit, or more rounds would not help, the migration may
// pause for its operator, during which rounds are rare. Then the journal gets Detaching, the
// members enter their control group, and the gate closes. A strict migration digests once more
// then; if the dirty bytes do not fit any more, it opens the gate for another series of rounds.
#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/gpu/access/throttle.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "src/base/units.h"

namespace gcr::migration::source {
namespace {

using std::chrono::seconds;

constexpr seconds kGateTimeout{10};
/// The time between two rounds of a paused migration; doubled after each round.
constexpr seconds kFirstPause{2};
constexpr seconds kLongestPause{60};
/// The shortest wait between rounds in a pause, as a multiple of the last round's duration.
constexpr int kPausePerRound = 9;

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

/// Opens the sink with the link's rate, if rounds have measured it.
Status open_image_sink(Prepared& p) {
  return open_image_sink(p.begun, p.images, p.precopy.convergence().rate());
}

Status find_dirty(Prepared& p) {
  GCR_TRY(refresh_buffers(p));
  // CRIU starts before the digest: during a step after it the process dirties more VRAM.
  if (!p.images.outgoing.prepared()) {
    const worker::Phases::Timer timer(p.begun.course.run.phases, "images", "start CRIU");
    GCR_TRY(p.images.outgoing.prepare());
  }
  return p.precopy.find_dirty();
}

Status image_round(Prepared& p) {
  const worker::Phases::Timer dumping(p.begun.course.run.phases, "images", "images round");
  GCR_TRY(open_image_sink(p));
  return p.images.outgoing.round(*p.images.sink);
}

Status layer_round(Prepared& p) {
  const worker::Phases::Timer timer(p.begun.course.run.phases, "images", "layer round");
  GCR_TRY(open_image_sink(p));
  return p.images.layers.send(*p.images.sink);
}

/// Sends a round. Meanwhile the gate is closed for `share_held` of the time.
Status copy_round(Prepared& p, double share_held) {
  Run& run = p.begun.course.run;
  run.console.tell("precopy", fmt::format("round {}: sending {}", p.precopy.rounds().size() + 1,
                                          format_bytes(p.precopy.remaining_bytes())));
  gpu::Throttle throttle(p.begun.processes.gate());
  throttle.set_share(share_held);
  const Status sent = p.precopy.send(&throttle);
  GCR_TRY(throttle.stop());
  GCR_TRY(sent);
  if (p.images.outgoing.in_rounds()) GCR_TRY(image_round(p));
  if (p.begun.in_container()) GCR_TRY(layer_round(p));
  GCR_TRY(fault::point("source.copied"));
  return run.worker.cancellation.check();
}

/// Waits for an operator's ContinueRequest. Rounds keep the destination up to date, so rarely that
/// they hardly load GPU and link.
Status pause(Prepared& p) {
  Run& run = p.begun.course.run;
  run.console.set_paused(true);
  p.begun.claimed.target->tell_paused(true);
  run.console.tell(worker::kPausedPhase.data(),
                   "waiting for `gcr-migrate continue` before the switchover");
  Clock::duration rest = kFirstPause;
  while (!run.console.may_switch_over()) {
    GCR_TRY(run.worker.cancellation.check());
    if (!run.console.sleep_unless_ordered(rest)) continue;
    const auto began = Clock::now();
    GCR_TRY(find_dirty(p));
    if (p.precopy.remaining_bytes() > 0) GCR_TRY(copy_round(p, 0));
    rest = std::max<Clock::duration>(std::min<Clock::duration>(2 * rest, kLongestPause),
                                     kPausePerRound * (Clock::now() - began));
  }
  run.console.set_paused(false);
  p.begun.claimed.target->tell_paused(false);
  run.console.tell("precopy", "continuing with the switchover");
  return run.worker.cancellation.check();
}

/// Sets the expected downtime in the report and for operators.
void begin_switchover(Prepared& p) {
  Precopy& precopy = p.precopy;
  proto::MigrateReport& report = p.begun.course.run.report;
  const double send_ms = precopy.convergence().expected_ms(precopy.remaining_bytes());
  const bool rate_is_known = precopy.remaining_bytes() == 0 || send_ms > 0;
  report.set_expected_send_ms(send_ms);
  report.set_expected_downtime_ms(p.steady.with_last_round_ms(precopy.digest_ms() + send_ms));
  report.set_expected_is_least(p.steady.is_least || !rate_is_known);
  p.begun.course.run.console.begin_switchover(report.expected_downtime_ms(),
                                              report.expected_is_least());
}

/// Checks that no member without a door uses a GPU: a dump would fail on its files of the driver.
Status check_others_use_no_gpu(const Members& members) {
  for (const Member& member : members) {
    if (member.access != nullptr || procfs::is_in_vfork(member.pid())) continue;
    const auto file = process::driver_file_in_use(member.pid());
    if (!file) continue;
    return Error(
        Code::kRefused,
        fmt::format("process {} began to use a GPU after it was examined: it has {}; try again",
                    process::describe_process(member.pid()), *file));
  }
  return {};
}

Status follow_members_in_time(Begun& begun) {
  for (const auto end = Clock::now() + kTransience;;) {
    const Status followed = follow_members(begun, procfs::tree(begun.processes.pid()));
    if (followed || !is_transient(begun.claimed, followed.error(), end)) return followed;
    GCR_TRY(begun.course.run.worker.cancellation.check());
  }
}

Status copy_rounds(Prepared& p) {
  Run& run = p.begun.course.run;
  const worker::Phases::Timer timer(run.phases, "course", "pre-copy");
  // The report of a failure says from now on that the process keeps running.
  run.report.set_source_touched(true);
  run.console.begin_copying(p.begun.claimed.target->channel());
  Convergence& convergence = p.precopy.convergence();
  for (;;) {
    GCR_TRY(find_dirty(p));
    convergence.set_downtime_limit(run.console.limits().downtime_ms);
    GCR_ASSIGN(const auto next, convergence.decide(p.precopy.remaining_bytes()));
    const double share_held = convergence.throttle();
    run.console.set_throttle(share_held);
    if (next == Convergence::Next::kRound) {
      GCR_TRY(copy_round(p, share_held));
    } else if (p.begun.course.request.pause_before_switchover() && !run.console.may_switch_over()) {
      GCR_TRY(pause(p));
    } else if (p.images.outgoing.lacks_round()) {
      GCR_TRY(image_round(p));
    } else {
      run.report.set_switchover_reason(to_string(next));
      break;
    }
  }
  begin_switchover(p);
  GCR_TRY(open_image_sink(p));
  return note_detaching(p.begun, *p.vram);
}

/// Closes the gate. False: it is open again, for another round.
Result<bool> stop_for_last_round(Prepared& p) {
  GCR_TRY(close_gate(p.begun));
  GCR_TRY(refresh_buffers(p));
  if (!p.begun.course.request.strict()) return true;
  GCR_TRY(p.precopy.find_dirty());
  if (p.precopy.convergence().acceptable(p.precopy.remaining_bytes())) return true;
  GCR_TRY(p.begun.processes.open_gate());
  note_undone_closing(p.begun.course.run);
  return false;
}

}  // namespace

Status open_image_sink(const Begun& begun, Images& images, double link_bytes_per_s) {
  if (images.sink != nullptr) return {};
  GCR_ASSIGN(images.sink,
             begun.claimed.target->image_sink(to_compression(begun.course.request.compression()),
                                              link_bytes_per_s));
  return {};
}

Status note_detaching(Begun& begun, TakenVram& vram) {
  Run& run = begun.course.run;
  if (run.log->journal().last(journal::Record::kDetaching) != nullptr) return {};
  GCR_TRY(arm_keeper(begun, vram));
  GCR_TRY(follow_members_in_time(begun));
  GCR_TRY(check_others_use_no_gpu(begun.claimed.members));
  journal::Record record;
  journal::Detaching& detaching = *record.mutable_detaching();
  detaching.set_driver_alone(begun.processes.driver_alone());
  for (const Member& member : begun.claimed.members) {
    const auto home = begun.processes.group().home_of(member.pid());
    *detaching.add_homes() = home ? *home : std::string();
    *detaching.add_members() = id_of(member);
  }
  GCR_TRY(run.log->advance(commit::SourceEvent::kDetaching, std::move(record)));
  return begun.processes.enter_group();
}

Status close_gate(Begun& begun) {
  Run& run = begun.course.run;
  GCR_TRY(fault::point("source.closing"));
  run.console.tell("switchover", "closing the gate");
  run.console.downtime().begin();
  run.report.set_gate_closed_ms(run.phases.since_origin_ms(*run.console.downtime().since()));
  GCR_TRY(run.phases.time("process", "close gate", [&] {
    return begun.processes.close_gate(kGateTimeout, [&run](const std::string& waits_for) {
      run.console.tell("switchover", waits_for);
    });
  }));
  GCR_TRY(fault::point("source.gated"));
  return run.worker.cancellation.check();
}

Status copy(Prepared& prepared) {
  for (bool stopped = false; !stopped;) {
    GCR_TRY(copy_rounds(prepared));
    GCR_ASSIGN(stopped, stop_for_last_round(prepared));
  }
  return {};
}

void note_undone_closing(Run& run) {
  const auto since = run.console.downtime().undo();
  if (since) run.phases.add("course", "undone closing", *since, Clock::now());
}

}  // namespace gcr::migration::source
