#include "src/cli/trace.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <map>

#include "src/base/uuid.h"
#include "src/cli/trace.pb.h"
#include "src/control/control_channel.h"

namespace gcr::cli {
namespace {

using control::printable;

constexpr double kLongestTracedMs = 1e12;  // decades: beyond it a report is nonsense

/// Whole nanoseconds, so that slices which touch do not overlap by a rounding error.
std::int64_t nanoseconds(double ms) {
  if (!(ms > 0)) return 0;
  return std::llround(std::min(ms, kLongestTracedMs) * 1e6);
}

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

struct Slice {
  std::string name;
  std::string category;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  google::protobuf::Struct arguments;
};

struct Place {
  int pid = 0;
  int tid = 0;
};

void set_argument(google::protobuf::Struct& arguments, const char* name, double value) {
  (*arguments.mutable_fields())[name].set_number_value(std::isfinite(value) ? value : 0);
}

void set_argument(google::protobuf::Struct& arguments, const char* name, const std::string& value) {
  (*arguments.mutable_fields())[name].set_string_value(value);
}

Slice slice_of(std::string name, std::string category, double start_ms, double duration_ms) {
  const std::int64_t start = nanoseconds(start_ms);
  // A slice that began before the start loses that part.
  const std::int64_t end = nanoseconds(start_ms + std::max(duration_ms, 0.0));
  return {std::move(name), std::move(category), start, std::max(start, end), {}};
}

Slice slice_of(const proto::Round& round) {
  Slice slice =
      slice_of(fmt::format("round {}{}", round.number(), round.last() ? ", the last" : ""), "round",
               round.start_ms(), round.duration_ms());
  set_argument(slice.arguments, "digest_ms", round.digest_ms());
  set_argument(slice.arguments, "changed_chunks", static_cast<double>(round.dirty_chunks()));
  set_argument(slice.arguments, "zero_chunks", static_cast<double>(round.zero_chunks()));
  set_argument(slice.arguments, "sent_bytes", static_cast<double>(round.sent_bytes()));
  set_argument(slice.arguments, "rate_bytes_per_s", round.rate_bytes_per_s());
  set_argument(slice.arguments, "throttle", round.throttle());
  return slice;
}

/// What lies on one track so far: the ends of the slices that are open at the last one's start.
class Track {
 public:
  /// False if the slice would overlap with what is here without nesting in it. Slices come in order
  /// of start, longer ones first.
  bool take(const Slice& slice) {
    while (!open_ends_.empty() && open_ends_.back() <= slice.start_ns) open_ends_.pop_back();
    if (!open_ends_.empty() && open_ends_.back() < slice.end_ns) return false;
    open_ends_.push_back(slice.end_ns);
    return true;
  }

 private:
  std::vector<std::int64_t> open_ends_;
};

/// Gives hosts and tracks their numbers and names, and collects events.
class Writer {
 public:
  Writer() {
    file_.set_display_time_unit("ms");
    host("source");
    host("destination");
  }

  trace::TraceFile take() { return std::move(file_); }
  google::protobuf::Struct& other() { return *file_.mutable_other_data(); }

  /// All slices of one host and track.
  void add(const std::string& host_name, const std::string& track_name, std::vector<Slice> slices) {
    std::ranges::stable_sort(slices, [](const Slice& a, const Slice& b) {
      return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
    });
    std::vector<Track> tracks;
    std::vector<Place> places;
    for (Slice& slice : slices) {
      std::size_t lane = 0;
      while (lane < tracks.size() && !tracks[lane].take(slice)) ++lane;
      if (lane == tracks.size()) {
        tracks.emplace_back().take(slice);
        places.push_back(new_track(host_name, track_name, lane));
      }
      add(places[lane], std::move(slice));
    }
  }

  void add_instant(const char* name, const std::string& host_name, double at_ms) {
    trace::TraceEvent& event = *file_.add_trace_events();
    event.set_name(name);
    event.set_ph("i");
    event.set_cat("gate");
    event.set_s("g");
    event.set_ts(microseconds(nanoseconds(at_ms)));
    event.set_pid(host(host_name));
    event.set_tid(0);
  }

 private:
  /// Its process number, from 1.
  int host(const std::string& name) {
    const auto [found, is_new] = hosts_.try_emplace(name, static_cast<int>(hosts_.size()) + 1);
    if (is_new) {
      add_name("process_name", {found->second, 0}, name);
      add_order("process_sort_index", {found->second, 0}, found->second);
    }
    return found->second;
  }

  Place new_track(const std::string& host_name, const std::string& name, std::size_t lane) {
    const Place place{host(host_name), ++tracks_};
    add_name("thread_name", place, lane == 0 ? name : fmt::format("{} ({})", name, lane + 1));
    add_order("thread_sort_index", place, place.tid);
    return place;
  }

  trace::TraceEvent& add_metadata(const char* what, Place place) {
    trace::TraceEvent& event = *file_.add_trace_events();
    event.set_name(what);
    event.set_ph("M");
    event.set_pid(place.pid);
    event.set_tid(place.tid);
    return event;
  }
  void add_name(const char* what, Place place, const std::string& name) {
    set_argument(*add_metadata(what, place).mutable_args(), "name", printable(name));
  }
  void add_order(const char* what, Place place, int order) {
    set_argument(*add_metadata(what, place).mutable_args(), "sort_index", order);
  }

  void add(Place place, Slice slice) {
    trace::TraceEvent& event = *file_.add_trace_events();
    event.set_name(slice.name);
    event.set_ph("X");
    event.set_cat(slice.category);
    event.set_ts(microseconds(slice.start_ns));
    event.set_dur(microseconds(slice.end_ns - slice.start_ns));
    event.set_pid(place.pid);
    event.set_tid(place.tid);
    if (!slice.arguments.fields().empty()) *event.mutable_args() = std::move(slice.arguments);
  }

  trace::TraceFile file_;
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
  std::ranges::stable_sort(ordered, [](const proto::PhaseTime* a, const proto::PhaseTime* b) {
    const auto a_start = nanoseconds(a->start_ms()), b_start = nanoseconds(b->start_ms());
    if (a_start != b_start) return a_start < b_start;
    return nanoseconds(a->duration_ms()) > nanoseconds(b->duration_ms());
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
    writer.add_instant("gate closed", "source", report.gate_closed_ms());
    writer.add_instant(
        "gate opened", report.migrated() ? "destination" : "source",
        report.gate_closed_ms() + report.downtime_ms() - undone_closings(report).duration_ms);
  }
  if (Uuid id; report.migration_id().size() == id.bytes.size()) {
    std::ranges::copy(report.migration_id(), id.bytes.begin());
    set_argument(writer.other(), "migration", id.to_string());
  }
  set_argument(writer.other(), "clock_offset_ms", report.clock_offset_ms());
  set_argument(writer.other(), "clock_error_ms", report.clock_error_ms());
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(writer.take(), &text);
  return status.ok() ? text : "{\"traceEvents\":[]}";
}

Result<TraceFile> TraceFile::open(const std::string& path) {
  errno = 0;
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  if (!stream) return Error::from_errno(errno, fmt::format("cannot open {}", printable(path)));
  return TraceFile(path, std::move(stream));
}

Status TraceFile::write(const proto::MigrateReport& report) {
  errno = 0;
  stream_ << to_trace(report) << '\n';
  stream_.close();
  if (stream_) return {};
  return Error::from_errno(errno, fmt::format("cannot write the trace to {}", printable(path_)));
}

}  // namespace gcr::cli
