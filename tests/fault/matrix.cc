#include "tests/fault/matrix.h"

#include "tests/fault/pair.h"

namespace gcr::fault::test {
namespace {

/// Longer than a peer may be silent: each side has given the other up before the link is back.
constexpr Milliseconds kCut = kPeerSilence + Milliseconds(700);

Side survivor_of(const Point& point) { return point.decided ? Side::kDestination : Side::kSource; }

Scenario at(const Point& point, Harm harm) {
  Scenario scenario;
  scenario.harm = harm;
  scenario.side = point.side;
  scenario.point = point.name;
  if (harm == Harm::kCut) scenario.lasts = kCut;
  // A daemon's death, or a link's after the last message, need not end the migration.
  if (harm != Harm::kKillDaemon || point.decided) scenario.survivor = survivor_of(point);
  return scenario;
}

/// A crash from which recovery passes `point`, and the harm that meets it there.
Scenario recovering(const Point& point, std::string_view crash, Harm harm, Side survivor) {
  Scenario scenario;
  scenario.harm = Harm::kKillWorker;
  scenario.side = point.side;
  scenario.point = crash;
  scenario.then_point = point.name;
  scenario.then = harm;
  scenario.survivor = survivor;
  return scenario;
}

void add_boundary(std::vector<Scenario>& scenarios, const Point& point) {
  for (const Harm harm :
       {Harm::kError, Harm::kKillWorker, Harm::kKillDaemon, Harm::kKillBoth, Harm::kCut}) {
    scenarios.push_back(at(point, harm));
  }
}

void add_recovery(std::vector<Scenario>& scenarios, const Point& point) {
  struct Crash {
    std::string_view point;
    Side survivor;
  };
  const std::vector<Crash> crashes =
      point.side == Side::kSource ? std::vector<Crash>{{"source.checkpointed", Side::kSource},
                                                       {"source.dumped", Side::kSource}}
                                  : std::vector<Crash>{{"destination.restored", Side::kSource},
                                                       {"destination.told", Side::kDestination}};
  for (const Crash& crash : crashes) {
    for (const Harm harm : {Harm::kError, Harm::kKillWorker}) {
      scenarios.push_back(recovering(point, crash.point, harm, crash.survivor));
    }
  }
}

}  // namespace

std::vector<Scenario> matrix() {
  std::vector<Scenario> scenarios;
  for (const Point& point : kPoints) {
    switch (point.kind) {
      case Kind::kBoundary:
        add_boundary(scenarios, point);
        break;
      case Kind::kRecovery:
        add_recovery(scenarios, point);
        break;
      case Kind::kCorruption:
        scenarios.push_back(at(point, Harm::kCorrupt));
        break;
      case Kind::kFailure:
        scenarios.push_back(at(point, Harm::kError));
        break;
    }
  }
  return scenarios;
}

}  // namespace gcr::fault::test
