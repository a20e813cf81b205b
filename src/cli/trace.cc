#include "src/cli/trace.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "src/base/uuid.h"
#include "src/cli/json.h"
#include "src/cli/trace.pb.h"
#include "src/control/wire.h"

namespace gcr::cli {
namespace {

using control::printable;

constexpr double kLongestTracedMs = 1e12;  // decades: beyond it a report is nonsense

/// Converts to whole nanoseconds, so that adjacent slices do not overlap by a rounding error.
std::int64_t nanoseconds(double ms) {
  if (!(ms > 0)) return 0;
  return std::llround(std::min(ms, kLongestTracedMs) * 1e6);
}

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

struct Slice {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  trace::TraceEvent event;  ///< without process and thread
};

Slice slice_of(const std::string& name, const char* category, double start_ms, double duration_ms) {
  Slice slice;
  slice.start_ns = nanoseconds(start_ms);
  // The part of a slice before the start is cut off.
  slice.end_ns = std::max(slice.start_ns, nanoseconds(start_ms + std::max(duration_ms, 0.0)));
  slice.event.set_name(name);
  slice.event.set_ph("X");
  slice.event.set_cat(category);
  slice.event.set_ts(microseconds(slice.start_ns));
  slice.event.set_dur(microseconds(slice.end_ns - slice.start_ns));
  return slice;
}

Slice slice_of(const proto::Round& round) {
  Slice slice =
      slice_of(fmt::format("round {}{}", round.number(), round.last() ? ", the last" : ""), "round",
               round.start_ms(), round.duration_ms());
  Struct& arguments = *slice.event.mutable_args();
  set(arguments, "changed_chunks", static_cast<double>(round.dirty_chunks()));
  set_fields(arguments, round,
             {"digest_ms", "zero_chunks", "sent_bytes", "rate_bytes_per_s", "throttle"});
  return slice;
}

/// A thread in a trace viewer.
struct Lane {
  int tid = 0;
  std::vector<std::int64_t>
      open_ends;  ///< of the slices that are open at the start of the last one

  /// Adds a slice; false if it would overlap with others here without nesting. Slices come in order
  /// of start, longer ones first.
  bool add(const Slice& slice) {
    while (!open_ends.empty() && open_ends.back() <= slice.start_ns) open_ends.pop_back();
    if (!open_ends.empty() && open_ends.back() < slice.end_ns) return false;
    open_ends.push_back(slice.end_ns);
    return true;
  }
};

/// Numbers and names hosts and tracks, and collects events.
class Writer {
 public:
  Writer() {
    file.set_display_time_unit("ms");
    host("source");
    host("destination");
  }

  /// Adds all slices of one host and track.
  void add(const std::string& host_name, const std::string& track, std::vector<Slice> slices) {
    std::ranges::stable_sort(
        slices, {}, [](const Slice& slice) { return std::pair(slice.start_ns, -slice.end_ns); });
    const int pid = host(host_name);
    std::vector<Lane> lanes;
    for (Slice& slice : slices) {
      auto lane = std::ranges::find_if(lanes, [&](Lane& one) { return one.add(slice); });
      if (lane == lanes.end()) {
        lane = lanes.insert(lane, Lane{++tracks_, {slice.end_ns}});
        const auto number = lanes.size();
        name("thread", pid, lane->tid, number == 1 ? track : fmt::format("{} ({})", track, number));
      }
      place(std::move(slice.event), pid, lane->tid);
    }
  }

  void add_instant(const char* name, const std::string& host_name, double at_ms) {
    trace::TraceEvent event;
    event.set_name(name);
    event.set_ph("i");
    event.set_cat("gate");
    event.set_s("g");
    event.set_ts(microseconds(nanoseconds(at_ms)));
    place(std::move(event), host(host_name), 0);
  }

  trace::TraceFile file;

 private:
  /// Returns the host's process number, from 1.
  int host(const std::string& host_name) {
    const auto [found, is_new] = hosts_.try_emplace(host_name, static_cast<int>(hosts_.size()) + 1);
    if (is_new) name("process", found->second, 0, host_name);
    return found->second;
  }

  /// Names a process or a thread; viewers show them in the order of their numbers.
  void name(const std::string& what, int pid, int tid, const std::string& text) {
    trace::TraceEvent name, order;
    name.set_name(what + "_name");
    set(*name.mutable_args(), "name", text);
    order.set_name(what + "_sort_index");
    set(*order.mutable_args(), "sort_index", tid == 0 ? pid : tid);
    for (trace::TraceEvent* event : {&name, &order}) {
      event->set_ph("M");
      place(std::move(*event), pid, tid);
    }
  }

  void place(trace::TraceEvent event, int pid, int tid) {
    event.set_pid(pid);
    event.set_tid(tid);
    *file.add_trace_events() = std::move(event);
  }

  std::map<std::string, int> hosts_;
  int tracks_ = 0;
};

void add_slices(Writer& writer, const proto::MigrateReport& report) {
  std::vector<Slice> rounds;
  for (const proto::Round& round : report.rounds()) rounds.push_back(slice_of(round));
  writer.add("source", "rounds", std::move(rounds));
  std::map<std::pair<std::string, std::string>, std::vector<Slice>> tracks;
  for (const proto::PhaseTime& phase : report.phases()) {
    tracks[{phase.host(), track_of(phase)}].push_back(
        slice_of(printable(phase.name()), "phase", phase.start_ms(), phase.duration_ms()));
  }
  for (auto& [where, slices] : tracks) writer.add(where.first, where.second, std::move(slices));
}

}  // namespace

std::vector<const proto::PhaseTime*> in_order_of_time(
    const google::protobuf::RepeatedPtrField<proto::PhaseTime>& phases) {
  std::vector<const proto::PhaseTime*> ordered;
  for (const proto::PhaseTime& phase : phases) ordered.push_back(&phase);
  std::ranges::stable_sort(ordered, {}, [](const proto::PhaseTime* phase) {
    return std::pair(nanoseconds(phase->start_ms()), -nanoseconds(phase->duration_ms()));
  });
  return ordered;
}

std::string track_of(const proto::PhaseTime& phase) {
  return phase.track().empty() ? "process" : phase.track();
}

UndoneClosings undone_closings(const proto::MigrateReport& report) {
  UndoneClosings undone;
  for (const proto::PhaseTime& phase : report.phases()) {
    if (phase.name() != "undone closing") continue;
    ++undone.count;
    undone.duration_ms += phase.duration_ms();
  }
  return undone;
}

std::string to_trace(const proto::MigrateReport& report) {
  Writer writer;
  add_slices(writer, report);
  if (report.downtime_ms() > 0) {
    const bool moved =
        report.migrated() && (report.checkpoint().empty() || report.destination_pid() > 0);
    writer.add_instant("gate closed", "source", report.gate_closed_ms());
    writer.add_instant(
        "gate opened", moved ? "destination" : "source",
        report.gate_closed_ms() + report.downtime_ms() - undone_closings(report).duration_ms);
  }
  Struct& other = *writer.file.mutable_other_data();
  if (!report.migration_id().empty()) {
    set(other, "migration", to_uuid(report.migration_id()).to_string());
  }
  set_fields(other, report, {"clock_offset_ms", "clock_error_ms"});
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(writer.file, &text);
  return status.ok() ? text : "{\"traceEvents\":[]}";
}

}  // namespace gcr::cli
