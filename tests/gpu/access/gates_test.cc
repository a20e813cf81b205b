// Closing the gates of a job whose members' kernels wait for each other. The ranks are models: the
// program of a rank is a list of calls, its GPU runs them in order, and a collective ends when the
// GPU of every rank has reached it.
#include "migrate-agent/gpu/access/gates.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <random>

namespace gcr::test {
namespace {

using gpu::Gates;
using gpu::Held;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLong{60};

/// The program of all ranks: true where the call is a collective.
using Program = std::vector<bool>;

class Rank;

struct Machine {
  Program program;
  std::vector<std::unique_ptr<Rank>> ranks;
  bool ring = false;
  std::mutex mutex;

  Machine(Program what, const std::vector<std::size_t>& submitted);
  /// Runs every call that can run now.
  void run();
  bool can_run(std::size_t rank) const;
  Gates gates();
  std::size_t furthest() const;
};

class Rank : public gpu::GpuAccess {
 public:
  Rank(Machine& machine, std::size_t submitted) : submitted(submitted), machine_(machine) {}

  std::size_t submitted;  ///< calls submitted to its GPU
  std::size_t done = 0;   ///< those that have finished
  bool open = true;
  std::size_t steps = 0;
  std::optional<Error> error{};

  Result<Held> hold(Microseconds, Milliseconds) override {
    const std::lock_guard lock(machine_.mutex);
    if (error) return *error;
    open = false;
    return state();
  }
  Result<Held> step(Microseconds) override {
    const std::lock_guard lock(machine_.mutex);
    ++submitted;
    ++steps;
    return state();
  }
  Status resume() override {
    open = true;
    return {};
  }
  Result<gpu::AccessState> read_state(Milliseconds) override { return nothing(); }
  Result<std::vector<gpu::LocalAllocation>> allocations() override { return nothing(); }
  Result<std::vector<gpu::ExportedAllocation>> take(std::span<const std::uint64_t>) override {
    return nothing();
  }
  Status detach() override { return nothing(); }
  Status attach(std::vector<std::pair<std::uint64_t, UniqueFd>>) override { return nothing(); }
  Result<std::uint64_t> drop_pages(std::span<const Pages>) override { return nothing(); }
  Status use_huge_pages(std::span<const Pages>) override { return nothing(); }

 private:
  static Error nothing() { return Error(Code::kUnsupported, "a model has none of it"); }

  Held state() {
    machine_.run();
    const bool quiet = done == submitted;
    return {.quiet = quiet,
            .obstacle = quiet ? "" : "its GPU waits",
            .waiting = submitted < machine_.program.size() ? 1U : 0U};
  }

  Machine& machine_;
};

Machine::Machine(Program what, const std::vector<std::size_t>& submitted)
    : program(std::move(what)) {
  for (const std::size_t count : submitted) ranks.push_back(std::make_unique<Rank>(*this, count));
}

bool Machine::can_run(std::size_t rank) const {
  const std::size_t at = ranks[rank]->done;
  if (at == ranks[rank]->submitted) return false;
  const auto is_there = [&](const auto& other) {
    return other->done > at || (other->done == at && other->submitted > at);
  };
  if (!program[at]) return true;
  if (ring) return is_there(ranks[(rank + ranks.size() - 1) % ranks.size()]);
  return std::ranges::all_of(ranks, is_there);
}

void Machine::run() {
  for (bool ran = true; ran;) {
    std::vector<std::size_t> able;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (can_run(rank)) able.push_back(rank);
    }
    for (const std::size_t rank : able) ++ranks[rank]->done;
    ran = !able.empty();
  }
}

Gates Machine::gates() {
  std::vector<Gates::Member> members;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    members.push_back({static_cast<pid_t>(i + 1), ranks[i].get()});
  }
  return Gates(std::move(members));
}

std::size_t Machine::furthest() const {
  std::size_t most = 0;
  for (const auto& rank : ranks) most = std::max(most, rank->submitted);
  return most;
}

Program with_collectives_at(std::size_t length, std::initializer_list<std::size_t> places) {
  Program program(length);
  for (const std::size_t place : places) program[place] = true;
  return program;
}

TEST(ClosingGates, RanksBehindAreLetPassUntilNoRankWaits) {
  Machine machine(with_collectives_at(100, {40, 80}), {45, 10, 30});
  Gates gates = machine.gates();
  std::vector<std::string> told;
  gates.set_watch([&](const std::string& what) { told.push_back(what); });
  const Status closed = gates.quiesce(kLong, milliseconds(0));
  ASSERT_TRUE(closed) << closed.error().message();
  for (const auto& rank : machine.ranks) {
    EXPECT_EQ(rank->done, rank->submitted);
    EXPECT_FALSE(rank->open);
  }
  EXPECT_EQ(machine.ranks[0]->steps, 0u) << "it was the furthest";
  EXPECT_EQ(machine.ranks[1]->submitted, 41u) << "the collective, and no further call";
  EXPECT_EQ(machine.ranks[2]->submitted, 41u);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told.front(), "process 1: its GPU waits: calls of 2, 3 are let pass");
}

TEST(ClosingGates, NoCallIsLetPassWhenNoRankWaits) {
  Machine machine(with_collectives_at(100, {40}), {40, 7, 39, 0});
  Gates gates = machine.gates();
  ASSERT_TRUE(gates.quiesce(kLong, milliseconds(0)));
  for (const auto& rank : machine.ranks) EXPECT_EQ(rank->steps, 0u);
}

TEST(ClosingGates, NoRankRunsMoreThanOneCollectiveAhead) {
  std::mt19937 random(4711);
  for (int trial = 0; trial < 14; ++trial) {
    Program program(200);
    for (std::size_t i = 0; i < program.size(); ++i) program[i] = random() % 8 == 0;
    std::vector<std::size_t> submitted;
    for (int rank = 0; rank < 2 + trial % 7; ++rank) submitted.push_back(random() % 150);
    Machine machine(program, submitted);
    const std::size_t furthest = machine.furthest();
    Gates gates = machine.gates();
    const Status closed = gates.quiesce(kLong, milliseconds(0));
    ASSERT_TRUE(closed) << closed.error().message();
    EXPECT_LE(machine.furthest(), furthest);
    for (const auto& rank : machine.ranks) EXPECT_EQ(rank->done, rank->submitted);
  }
}

TEST(ClosingGates, RingOfMutualWaitsQuiesces) {
  std::mt19937 random(4711);
  for (int trial = 0; trial < 10; ++trial) {
    std::vector<std::size_t> submitted;
    for (int rank = 0; rank < 8; ++rank) submitted.push_back(random() % 12);
    Machine machine(Program(100'000, true), submitted);
    machine.ring = true;
    Gates gates = machine.gates();
    const Status closed = gates.quiesce(kLong, milliseconds(0));
    ASSERT_TRUE(closed) << closed.error().message();
    for (const auto& rank : machine.ranks) EXPECT_EQ(rank->done, rank->submitted);
  }
}

TEST(ClosingGates, RankThatMissesItsCollectiveReopensAllGates) {
  /// Its host thread does other work and makes no calls.
  struct Elsewhere : Rank {
    using Rank::Rank;
    Result<Held> hold(Microseconds, Milliseconds) override {
      open = false;
      return Held{.quiet = true};
    }
  };
  Machine stuck(with_collectives_at(41, {40}), {41, 41, 0});
  stuck.ranks.back() = std::make_unique<Elsewhere>(stuck, 0);
  Gates gates = stuck.gates();
  const Status closed = gates.quiesce(milliseconds(300), milliseconds(0));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code(), Code::kTimeout);
  EXPECT_THAT(closed.error().message(),
              testing::StartsWith("cannot hold back the CUDA calls of the job within 300 ms: "
                                  "process 1: its GPU waits; process 2: its GPU waits"));
  for (const auto& rank : stuck.ranks) EXPECT_TRUE(rank->open);
}

TEST(ClosingGates, EndOfAMemberReopensAllGates) {
  Machine machine(Program(10), {3, 4});
  machine.ranks[1]->error = Error(Code::kNotFound, "process 2 has ended");
  Gates gates = machine.gates();
  const Status closed = gates.quiesce(kLong, milliseconds(0));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code(), Code::kNotFound);
  EXPECT_TRUE(machine.ranks[0]->open);
}

}  // namespace
}  // namespace gcr::test
