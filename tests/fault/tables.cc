// The tables of the matrix and the campaign.
#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <ostream>

#include "tests/fault/trials.h"

namespace gcr::fault::test {
namespace {

constexpr Harm kHarms[] = {Harm::kError,      Harm::kCorrupt,  Harm::kKillWorker, Harm::kKillDaemon,
                           Harm::kKillBoth,   Harm::kKillHost, Harm::kKillApp,    Harm::kKillCopy,
                           Harm::kKillMember, Harm::kEndApp,   Harm::kStop,       Harm::kCut,
                           Harm::kWake,       Harm::kRun,      Harm::kNone};

struct Figures {
  std::size_t runs = 0;
  std::size_t migrated = 0;
  std::size_t stayed = 0;
  std::size_t ended = 0;
  std::size_t failures = 0;
  double slowest_ms = 0;
  std::vector<double> downtimes_ms;

  void add(const Result& result) {
    ++runs;
    slowest_ms = std::max(slowest_ms, result.recovery_ms);
    if (!result.passed()) {
      ++failures;
      return;
    }
    ++(result.ended ? ended : result.migrated ? migrated : stayed);
    if (result.downtime_ms > 0) downtimes_ms.push_back(result.downtime_ms);
  }
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::string row_of(const Scenario& scenario) {
  return scenario.then_point.empty() ? scenario.point
                                     : scenario.then_point + " after " + scenario.point;
}

Harm column_of(const Scenario& scenario) {
  return scenario.then_point.empty() ? scenario.harm : scenario.then;
}

std::string outcome_of(const Result& result) {
  if (!result.passed()) return "FAILED";
  if (result.ended) return "killed";
  return result.migrated ? "destination" : "source";
}

Figures figures_of(const std::vector<Done>& done) {
  Figures all;
  for (const Done& one : done) all.add(one.result);
  return all;
}

}  // namespace

std::size_t failures_of(const std::vector<Done>& done) { return figures_of(done).failures; }

void print_matrix(std::ostream& out, const std::vector<Done>& done) {
  std::vector<std::string> rows;
  std::map<std::string, std::map<Harm, const Result*>> cells;
  std::map<std::string, Figures> figures;
  std::map<Harm, std::size_t> used;
  for (const Done& one : done) {
    const std::string row = row_of(one.scenario);
    if (!cells.contains(row)) rows.push_back(row);
    cells[row][column_of(one.scenario)] = &one.result;
    figures[row].add(one.result);
    ++used[column_of(one.scenario)];
  }
  fmt::print(out, "{:56}", "where the process ran after a fault at");
  for (const Harm harm : kHarms) {
    if (used.contains(harm)) fmt::print(out, "{:13}", to_string(harm));
  }
  fmt::print(out, "slowest recovery\n");
  for (const std::string& row : rows) {
    fmt::print(out, "{:56}", row);
    for (const Harm harm : kHarms) {
      if (!used.contains(harm)) continue;
      const auto found = cells[row].find(harm);
      fmt::print(out, "{:13}", found == cells[row].end() ? "-" : outcome_of(*found->second));
    }
    fmt::print(out, "{:.0f} ms\n", figures[row].slowest_ms);
  }
  const Figures all = figures_of(done);
  fmt::print(out, "points={} kinds={} runs={} failures={} slowest_recovery_ms={:.0f}\n",
             rows.size(), used.size(), all.runs, all.failures, all.slowest_ms);
}

void print_campaign(std::ostream& out, const std::vector<Done>& done) {
  std::map<Harm, Figures> figures;
  for (const Done& one : done) figures[one.scenario.harm].add(one.result);
  fmt::print(out, "{:14}{:>7}{:>10}{:>13}{:>8}{:>10}{:>18}\n", "fault", "runs", "migrated",
             "rolled back", "killed", "failures", "slowest recovery");
  for (const auto& [harm, row] : figures) {
    fmt::print(out, "{:14}{:>7}{:>10}{:>13}{:>8}{:>10}{:>15.0f} ms\n", to_string(harm), row.runs,
               row.migrated, row.stayed, row.ended, row.failures, row.slowest_ms);
  }
  const Figures all = figures_of(done);
  fmt::print(out,
             "runs={} migrated={} rolled_back={} killed={} failures={} slowest_recovery_ms={:.0f} "
             "median_downtime_ms={:.0f}\n",
             all.runs, all.migrated, all.stayed, all.ended, all.failures, all.slowest_ms,
             median(all.downtimes_ms));
}

void publish(const std::string& text, const std::string& file) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  if (!file.empty()) std::ofstream(file) << text;
}

}  // namespace gcr::fault::test
