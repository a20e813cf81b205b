#include "tests/fault/matrix.h"

#include "tests/fault/pair.h"

namespace gcr::fault::test {
namespace {

/// Longer than the peer timeout: both sides have given up before the link is restored.
constexpr Milliseconds kCut = kPeerSilence + Milliseconds(700);

/// Where the process must run after `harm` at `point`, if that is certain.
std::optional<Side> survivor_of(const Point& point, Harm harm) {
  if (point.decided) return Side::kDestination;
  // A daemon's death need not end the migration, a link may be restored before it is missed, and a
  // process killed at the source may be in the images.
  if (harm == Harm::kKillDaemon || harm == Harm::kKillMember) return std::nullopt;
  // The source can decide alone.
  if (harm == Harm::kCut && point.name == "source.voted") return Side::kDestination;
  return Side::kSource;
}

Scenario at(const Point& point, Harm harm) {
  Scenario scenario;
  scenario.harm = harm;
  scenario.side = point.side;
  scenario.point = point.name;
  if (harm == Harm::kCut) scenario.lasts = kCut;
  scenario.survivor = survivor_of(point, harm);
  return scenario;
}

/// `then` at `point`, the first time that the process reaches it after `armed`.
Scenario later(std::string_view armed, const Point& point, Harm then, Side survivor) {
  Scenario scenario;
  scenario.harm = Harm::kArm;
  scenario.side = armed.starts_with("source.") ? Side::kSource : Side::kDestination;
  scenario.point = armed;
  scenario.then_point = point.name;
  scenario.then = then;
  scenario.survivor = survivor;
  return scenario;
}

/// A crash whose recovery reaches `point`, and the harm that happens there.
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
  for (const Harm harm : {Harm::kError, Harm::kKillWorker, Harm::kKillDaemon, Harm::kKillBoth,
                          Harm::kCut, Harm::kKillMember}) {
    scenarios.push_back(at(point, harm));
  }
  // Sending SIGCONT to it changes nothing.
  Scenario woken = at(point, Harm::kWake);
  woken.survivor = Side::kDestination;
  // CRIU restores meanwhile, and fails if its tasks are signalled.
  if (point.name == "destination.verified") woken.survivor = std::nullopt;
  scenarios.push_back(woken);
}

struct Place {
  std::string_view point;
  Side survivor;
};

void add_recovery(std::vector<Scenario>& scenarios, const Point& point) {
  std::vector<Place> crashes;
  if (point.side == Side::kSource) {
    crashes = {{"source.checkpointed", Side::kSource}, {"source.dumped", Side::kSource}};
  } else {
    crashes = {{"destination.restored", Side::kSource}};
  }
  // After the commit the source may report before it is asked.
  if (point.name == "destination.recovery.begun") {
    crashes.push_back({"destination.told", Side::kDestination});
  }
  for (const Place& crash : crashes) {
    for (const Harm harm : {Harm::kError, Harm::kKillWorker}) {
      scenarios.push_back(recovering(point, crash.point, harm, crash.survivor));
    }
  }
}

/// In the last round: bytes corrupted earlier may be overwritten.
void add_corruption(std::vector<Scenario>& scenarios, const Point& point) {
  Scenario scenario = later("source.gated", point, Harm::kCorrupt, Side::kSource);
  // The others corrupt a chunk in transit.
  scenario.steps_between = point.name != "destination.vram.corrupt";
  scenarios.push_back(scenario);
}

/// Each record of a journal after one of these cannot be written.
void add_records(std::vector<Scenario>& scenarios, const Point& append) {
  for (const Place& place : {Place{"source.preflighted", Side::kSource},
                             {"source.gated", Side::kSource},
                             {"source.flushed", Side::kSource},
                             {"source.voted", Side::kSource},
                             {"source.confirmed", Side::kDestination},
                             {"destination.stopped", Side::kSource},
                             {"destination.told", Side::kDestination},
                             {"destination.committed", Side::kDestination}}) {
    scenarios.push_back(later(place.point, append, Harm::kError, place.survivor));
  }
}

/// A copy that is killed before its release never ran, regardless of what was journaled.
void add_lost_copies(std::vector<Scenario>& scenarios) {
  for (const std::string_view point :
       {"destination.stopped", "destination.restored", "source.voted", "source.committed",
        "destination.told", "destination.committed"}) {
    Scenario scenario;
    scenario.harm = Harm::kKillCopy;
    scenario.side = point.starts_with("source.") ? Side::kSource : Side::kDestination;
    scenario.point = point;
    scenario.survivor = Side::kSource;
    scenarios.push_back(scenario);
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
        add_corruption(scenarios, point);
        break;
      case Kind::kFailure:
        add_records(scenarios, point);
        break;
      case Kind::kCheckpoint:
      case Kind::kSuspension:
      case Kind::kSlurm:
      case Kind::kContainer:
      case Kind::kNetwork:
      case Kind::kCheck:
        break;  // of the end-to-end tests
    }
  }
  add_lost_copies(scenarios);
  return scenarios;
}

}  // namespace gcr::fault::test
