// An outsider sends SIGCONT to a copy that must stay stopped: its owner, a scheduler, or its own
// timer. It stays stopped until the decision is made.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fault/pair.h"

namespace gcr::fault::test {
namespace {

using e2e::other;

/// How often the outsider sends SIGCONT, 10 ms apart: long after the peer timeout.
constexpr Milliseconds kLong{5000};

class Outsider : public testing::Test {
 protected:
  std::string network(Side side) {
    const Host host = side == Side::kSource ? pair_.source() : other(pair_.source());
    return pair_.hosts().network(host);
  }

  /// The outsider does not know of this: it continues when the worker is dead.
  std::string wake_for_long(Side side) {
    return fmt::format("({}) >/dev/null 2>&1 &", wake_command(network(side), ticker().name, kLong));
  }

  static Scenario at(const std::string& point, std::string command, std::string undo = "") {
    Scenario scenario;
    scenario.harm = Harm::kRun;
    scenario.side = point.starts_with("source") ? Side::kSource : Side::kDestination;
    scenario.point = point;
    scenario.command = std::move(command);
    scenario.undo = std::move(undo);
    return scenario;
  }

  void expect_one_copy(Scenario scenario, Side survivor) {
    scenario.survivor = survivor;
    const Result result = pair_.run(scenario);
    EXPECT_TRUE(result.passed()) << result.failure;
  }

  Pair pair_;
};

/// The destination has voted, its worker is dead and the link is down: the source resumes the
/// process while the outsider sends SIGCONT to the destination's copy.
TEST_F(Outsider, CannotResumeAnUndecidedCopy) {
  const std::string link = "ip -n " + network(Side::kSource) + " link set veth0 ";
  expect_one_copy(
      at("destination.restored",
         link + "down; " + wake_for_long(Side::kDestination) + " kill -KILL $PPID", link + "up"),
      Side::kSource);
}

/// The process is stopped at the source after its dump, and at the destination before the vote.
TEST_F(Outsider, CannotResumeTheSourceAfterItsDump) {
  expect_one_copy(
      at("source.dumped", wake_command(network(Side::kSource), ticker().name, kPeerSilence / 6)),
      Side::kDestination);
}

TEST_F(Outsider, CannotResumeTheSourceWithoutItsWorker) {
  expect_one_copy(
      at("source.awaiting", wake_command(network(Side::kSource), ticker().name, kPeerSilence / 6) +
                                "; kill -KILL $PPID"),
      Side::kSource);
}

TEST_F(Outsider, CannotResumeTheSourceAfterTheCommit) {
  expect_one_copy(
      at("source.committed", wake_command(network(Side::kSource), ticker().name, kPeerSilence / 6) +
                                 "; kill -KILL $PPID"),
      Side::kDestination);
}

TEST_F(Outsider, CannotResumeTheDestinationBeforeItsVote) {
  expect_one_copy(at("destination.stopped",
                     wake_command(network(Side::kDestination), ticker().name, kPeerSilence / 6)),
                  Side::kDestination);
}

}  // namespace
}  // namespace gcr::fault::test
