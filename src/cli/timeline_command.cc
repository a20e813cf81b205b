// Draws a migration: both hosts, their tracks, the rounds and the downtime.
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <ranges>
#include <utility>
#include <vector>

#include "src/base/units.h"
#include "src/cli/command.h"
#include "src/cli/progress_text.h"
#include "src/cli/trace.h"
#include "src/control/wire.h"

namespace gcr::cli {
namespace {

using control::printable;

constexpr const char* kTimelineDescription =
    "gcr-migrate timeline REPORT >timeline.svg: draw a migration, from the output of --json";

// Sizes in pixels.
constexpr double kWidth = 840;
constexpr double kLeft = 132;  // the rows' names
constexpr double kRight = 12;
constexpr double kPlot = kWidth - kLeft - kRight;
constexpr double kTitle = 26;
constexpr double kRow = 19;
constexpr double kBar = 15;
constexpr double kAxis = 24;
constexpr double kBetween = 18;
constexpr double kCharacter = 6.1;  // of 11 pixels high, on average
constexpr double kThinnest = 0.75;  // that can be seen
constexpr double kSlim = 4;

constexpr double kLongestDrawnMs = 1e9;
constexpr std::size_t kMostBars = 2000;

constexpr const char* kStyle = R"(<style>
  text { font: 11px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 13px; font-weight: 600 }
  .host { font-weight: 600 }
  .faint, .axis { fill: #59636e }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .down { fill: #cf222e; fill-opacity: .10 }
  .edge { stroke: #cf222e; stroke-width: 1 }
  .downtext { fill: #cf222e; font-weight: 600 }
  .course { fill: #afb8c1 } .round { fill: #54aeff } .vram { fill: #80ccff }
  .process { fill: #fdac54 } .images { fill: #a475f9 } .other { fill: #6fdd8b }
  .bar { stroke: #ffffff; stroke-width: .5 }
  .in { fill: #1f2328 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .faint, .axis { fill: #9198a1 }
    .grid { stroke: #3d444d }
    .down { fill: #f85149; fill-opacity: .16 }
    .edge { stroke: #f85149 }
    .downtext { fill: #ff7b72 }
    .bar { stroke: #0d1117 }
    .in { fill: #0d1117 }
  }
</style>
)";

struct Bar {
  std::string name;
  double begin_ms = 0;
  double end_ms = 0;
};

/// A host's track, and the kStyle class of its bars.
struct Track {
  const char* host;
  const char* name;
  const char* kind;
};

/// All tracks, in the order in which they are drawn.
constexpr std::array kTracks{
    Track{"source", "course", "course"},      Track{"source", "rounds", "round"},
    Track{"source", "process", "process"},    Track{"source", "images", "images"},
    Track{"source", "restore", "other"},      Track{"destination", "course", "course"},
    Track{"destination", "vram", "vram"},     Track{"destination", "process", "process"},
    Track{"destination", "images", "images"}, Track{"destination", "restore", "other"}};

/// Bars that do not overlap.
struct Row {
  const Track* track;
  std::vector<Bar> bars;
};

/// A range of time or of pixels.
struct Span {
  double begin = 0;
  double end = 0;
  double length() const { return end - begin; }
};

double bounded(double ms) { return std::isfinite(ms) ? std::clamp(ms, 0.0, kLongestDrawnMs) : 0; }

std::string escaped(std::string_view text) {
  static const std::map<char, std::string> kEntities{
      {'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}};
  std::string out;
  for (const char c : printable(text)) {
    const auto entity = kEntities.find(c);
    out += entity == kEntities.end() ? std::string(1, c) : entity->second;
  }
  return out;
}

Bar bar_of(std::string name, double start_ms, double duration_ms) {
  const double begin = bounded(start_ms);
  return {std::move(name), begin, begin + bounded(duration_ms)};
}

/// Returns the bars of a track. The source's rounds represent its VRAM phases.
std::vector<Bar> bars_of(const proto::MigrateReport& report, const Track& track) {
  std::vector<Bar> bars;
  if (track.name == std::string_view("rounds")) {
    for (const proto::Round& round : report.rounds()) {
      bars.push_back(
          bar_of(fmt::format("round {}, {}", round.number(), format_bytes(round.sent_bytes())),
                 round.start_ms(), round.duration_ms()));
    }
    return bars;
  }
  for (const proto::PhaseTime* phase : in_order_of_time(report.phases())) {
    if (phase->host() != track.host || track_of(*phase) != track.name) continue;
    bars.push_back(bar_of(phase->name(), phase->start_ms(), phase->duration_ms()));
  }
  return bars;
}

/// Places each bar into the first row of its track in which it does not overlap another.
std::vector<Row> rows_of(const proto::MigrateReport& report) {
  std::vector<Row> rows;
  std::size_t bars = 0;
  for (const Track& track : kTracks) {
    const auto first = static_cast<std::ptrdiff_t>(rows.size());
    for (Bar& bar : bars_of(report, track)) {
      if (++bars > kMostBars) return rows;
      const auto row = std::find_if(rows.begin() + first, rows.end(), [&](const Row& one) {
        return std::ranges::none_of(one.bars, [&](const Bar& other) {
          return bar.begin_ms < other.end_ms && other.begin_ms < bar.end_ms;
        });
      });
      if (row != rows.end()) {
        row->bars.push_back(std::move(bar));
      } else {
        rows.push_back({&track, {std::move(bar)}});
      }
    }
  }
  return rows;
}

/// Returns the distance of ticks: 1, 2 or 5 times a power of ten, so that at most ten fit into the
/// span.
double tick_of(const Span& span) {
  const double least = span.length() / 10;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

/// One time axis and the rows that have bars in it.
class Panel {
 public:
  /// Times are shown relative to `origin_ms`.
  Panel(std::string& out, Span span, double origin_ms, double top)
      : out_(out), span_(span), origin_ms_(origin_ms), top_(top) {}

  void title(const std::string& text) {
    put(R"(<text class="title" x="0" y="{:.1f}">{}</text>)", top_ + 14, escaped(text));
    top_ += kTitle;
  }

  /// Draws the panel; returns its lower edge.
  double draw(const std::vector<Row>& rows, const Span& down) {
    const auto shown = [this](const Row& row) {
      return std::ranges::any_of(row.bars, [this](const Bar& bar) { return visible(bar); });
    };
    const double bottom = top_ + kRow * static_cast<double>(std::ranges::count_if(rows, shown));
    axis(bottom);
    downtime(down, bottom);
    const Track* above = nullptr;
    for (const Row& row : rows | std::views::filter(shown)) {
      names(*row.track, std::exchange(above, row.track));
      draw(row);
      top_ += kRow;
    }
    return bottom + kAxis;
  }

 private:
  template <class... Arguments>
  void put(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Arguments>(arguments)...);
    out_ += '\n';
  }

  double x(double ms) const {
    return kLeft + (std::clamp(ms, span_.begin, span_.end) - span_.begin) / span_.length() * kPlot;
  }
  bool visible(const Bar& bar) const {
    return bar.end_ms >= span_.begin && bar.begin_ms <= span_.end;
  }

  void axis(double bottom) {
    const double tick = tick_of(span_);
    for (double ms = 0; origin_ms_ + ms <= span_.end; ms += tick) {
      const double at = x(origin_ms_ + ms);
      put(R"(<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>)", at, top_,
          bottom + 3);
      put(R"(<text class="axis" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)", at,
          bottom + 15, ms == 0 ? "0" : duration_text(ms));
    }
  }

  void downtime(const Span& down, double bottom) {
    if (down.length() <= 0) return;
    const double from = x(down.begin), to = x(down.end);
    put(R"(<rect class="down" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>)", from, top_,
        std::max(to - from, kThinnest), bottom - top_);
    for (const double at : {from, to}) {
      put(R"(<line class="edge" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>)", at, top_,
          bottom);
    }
  }

  /// Draws the host's and the track's name unless the row above shows them.
  void names(const Track& track, const Track* above) {
    const double baseline = top_ + kBar - 3;
    if (above == nullptr || above->host != std::string_view(track.host)) {
      put(R"(<text class="host" x="0" y="{:.1f}">{}</text>)", baseline, track.host);
    }
    if (above != &track) {
      put(R"(<text class="faint" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)", kLeft - 8,
          baseline, track.name);
    }
  }

  void draw(const Row& row) {
    std::vector<const Bar*> shown;
    for (const Bar& bar : row.bars) {
      if (!visible(bar)) continue;
      put(R"(<rect class="bar {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2">)"
          "<title>{}: {}</title></rect>",
          row.track->kind, x(bar.begin_ms), top_, width(bar), kBar, escaped(bar.name),
          duration_text(bar.end_ms - bar.begin_ms));
      shown.push_back(&bar);
    }
    label(std::move(shown));
  }

  /// Draws names in their bars or, if there is space, behind them. Longer bars choose first; bars
  /// that are hardly visible block no name.
  void label(std::vector<const Bar*> bars) {
    std::vector<Span> taken;
    for (const Bar* bar : bars) {
      if (width(*bar) >= kSlim) taken.push_back({x(bar->begin_ms), x(bar->end_ms)});
    }
    std::ranges::stable_sort(bars,
                             [this](const Bar* a, const Bar* b) { return width(*a) > width(*b); });
    for (const Bar* bar : bars) {
      const double needed = static_cast<double>(bar->name.size()) * kCharacter + 6;
      const double from = x(bar->begin_ms), to = from + width(*bar);
      const bool inside = needed <= to - from;
      const Span place{to, to + needed};
      const bool blocked = place.end > kWidth || std::ranges::any_of(taken, [&](const Span& other) {
                             return place.begin < other.end && other.begin < place.end;
                           });
      if (!inside && blocked) continue;
      put(R"(<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>)", inside ? "in" : "after",
          inside ? from + 4 : to + 3, top_ + kBar - 4, escaped(bar->name));
      if (!inside) taken.push_back(place);
    }
  }

  double width(const Bar& bar) const {
    return std::max(x(bar.end_ms) - x(bar.begin_ms), kThinnest);
  }

  std::string& out_;
  Span span_;
  double origin_ms_;
  double top_;
};

/// Returns the span that contains all bars.
Span extent(const std::vector<Row>& rows) {
  Span all;
  for (const Row& row : rows) {
    for (const Bar& bar : row.bars) all.end = std::max(all.end, bar.end_ms);
  }
  return all;
}

std::string title_of(const proto::MigrateReport& report) {
  std::string text = fmt::format("{} of GPU memory in {}", format_bytes(report.vram_bytes()),
                                 duration_text(report.total_ms()));
  if (report.rounds_size() > 0) text += fmt::format(", {} rounds", report.rounds_size());
  if (!report.transport().empty()) {
    text += fmt::format(", {}{}", report.transport(), report.encrypted() ? " with TLS" : "");
  }
  return text;
}

/// Returns an SVG of two panels with one row per track: the whole migration, and below it the
/// downtime, enlarged. Legible at 840 pixels, on a light or a dark page. kInvalidArgument if the
/// report has no phases to show.
Result<std::string> timeline_svg(const proto::MigrateReport& report) {
  const std::vector<Row> rows = rows_of(report);
  const Span all = extent(rows);
  if (rows.empty() || !(all.length() > 0)) {
    return Error(Code::kInvalidArgument, "the report has no phases to show");
  }
  const double closed = bounded(report.gate_closed_ms());
  const double down_ms = report.downtime_ms() - undone_closings(report).duration_ms;
  const Span down{closed, closed + bounded(std::max(0.0, down_ms))};
  std::string body;
  Panel whole(body, all, 0, 0);
  whole.title(title_of(report));
  double height = whole.draw(rows, down);
  if (down.length() > 0) {
    const double margin = down.length() * 0.02;
    Panel near(body, {std::max(0.0, down.begin - margin), down.end + margin}, down.begin,
               height + kBetween);
    near.title(fmt::format("downtime: {}, from the gate's closing to its opening",
                           duration_text(down.length())));
    height = near.draw(rows, down);
  }
  return fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" )"
                     R"(width="{0:.0f}" height="{1:.0f}">)"
                     "\n{2}{3}</svg>\n",
                     kWidth, height, kStyle, body);
}

std::string all_of(std::istream& stream) {
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

Result<std::string> read(const std::string& path) {
  if (path == "-") return all_of(std::cin);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error::from_errno(errno, "cannot open the report");
  return all_of(file);
}

/// Parses the report in the last line of `text`, which --json of this or an earlier release wrote.
Result<proto::MigrateReport> report_of(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  const std::string line = text.substr(text.find_last_of('\n') + 1);
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  proto::MigrateReport report;
  const auto parsed = google::protobuf::util::JsonStringToMessage(line, &report, options);
  if (parsed.ok() && line.find("\"migrated\":") != std::string::npos) return report;
  return Error(Code::kInvalidArgument, "the last line is not a report of gcr-migrate --json");
}

Result<std::string> picture_of(const std::string& path) {
  GCR_ASSIGN(std::string text, read(path));
  GCR_ASSIGN(const proto::MigrateReport report, report_of(std::move(text)));
  return timeline_svg(report);
}

}  // namespace

void add_timeline(CLI::App& app, Commands& commands) {
  const auto path = std::make_shared<std::string>();
  CLI::App* timeline = app.add_subcommand("timeline", kTimelineDescription);
  timeline
      ->add_option("REPORT", *path, "A file whose last line is the report; - for standard input")
      ->required();
  commands[timeline] = [path] {
    const auto picture = picture_of(*path);
    if (!picture) return fail(ExitCode::kUsage, *path + ": " + picture.error().message());
    fmt::print("{}", *picture);
    return ExitCode::kMigrated;
  };
}

}  // namespace gcr::cli
