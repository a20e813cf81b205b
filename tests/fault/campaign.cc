#include "tests/fault/campaign.h"

#include <random>

#include "tests/fault/pair.h"

namespace gcr::fault::test {
namespace {

/// std::uniform_int_distribution differs between libraries; a plan must not.
class Dice {
 public:
  Dice(std::uint64_t seed, std::uint64_t run) : generator_(seed * 1'000'003 + run) {}

  /// From 0 to `end` - 1.
  std::uint64_t below(std::uint64_t end) { return generator_() % end; }

  template <class T, std::size_t kCount>
  const T& one_of(const T (&list)[kCount]) {
    return list[below(kCount)];
  }

 private:
  std::mt19937_64 generator_;
};

constexpr Harm kAnyTime[] = {Harm::kNone,       Harm::kKillWorker, Harm::kKillWorker,
                             Harm::kKillDaemon, Harm::kKillBoth,   Harm::kKillHost,
                             Harm::kKillApp,    Harm::kStop,       Harm::kCut};
constexpr Harm kAtPoint[] = {Harm::kError,    Harm::kKillWorker, Harm::kKillDaemon, Harm::kKillBoth,
                             Harm::kKillHost, Harm::kKillApp,    Harm::kStop,       Harm::kCut};

Milliseconds duration_of(Harm harm, Dice& dice) {
  if (harm != Harm::kStop && harm != Harm::kCut) return Milliseconds(0);
  return Milliseconds(50 + dice.below(static_cast<std::uint64_t>(kPeerSilence.count()) * 3 / 2));
}

const Point& random_boundary(Dice& dice) {
  for (;;) {
    const Point& point = dice.one_of(kPoints);
    if (point.kind == Kind::kBoundary) return point;
  }
}

Scenario random_scenario(Dice& dice, Milliseconds window) {
  Scenario scenario;
  if (dice.below(3) == 0) {
    const Point& point = random_boundary(dice);
    scenario.point = point.name;
    scenario.side = point.side;
    scenario.harm = dice.one_of(kAtPoint);
  } else {
    scenario.harm = dice.one_of(kAnyTime);
    scenario.side = dice.below(2) == 0 ? Side::kSource : Side::kDestination;
    scenario.delay = Milliseconds(dice.below(static_cast<std::uint64_t>(window.count())));
  }
  scenario.lasts = duration_of(scenario.harm, dice);
  return scenario;
}

}  // namespace

std::vector<Scenario> campaign(std::uint64_t seed, std::size_t runs, Milliseconds window,
                               bool spared) {
  std::vector<Scenario> scenarios;
  for (std::size_t run = 0; run < runs; ++run) {
    Dice dice(seed, run);
    if (spared && dice.below(2) == 0) {
      scenarios.emplace_back();
      continue;
    }
    Scenario scenario = random_scenario(dice, window);
    while (spared && (scenario.may_end_it() || scenario.harm == Harm::kNone)) {
      scenario = random_scenario(dice, window);
    }
    scenarios.push_back(std::move(scenario));
  }
  return scenarios;
}

}  // namespace gcr::fault::test
