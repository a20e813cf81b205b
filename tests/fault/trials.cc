#include "tests/fault/trials.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/fault/pair.h"

namespace gcr::fault::test {
namespace {

/// The work of all threads: each idle one takes the next scenario.
class Queue {
 public:
  Queue(const std::vector<Scenario>& scenarios, const TrialOptions& options)
      : options_(options), results_(scenarios.size()), scenarios_(scenarios) {}

  /// Until nothing is left, on its own pairs of hosts.
  void work() {
    std::unique_ptr<Pair> pair;
    std::string program;
    unsigned runs = 0;
    for (auto index = take(); index; index = take()) {
      Result result;
      try {
        if (pair == nullptr) {
          program = next_program();
          print_progress("starts: " + program);
          pair = make_pair(program);
          print_progress("goes on: " + program);
          runs = 0;
        }
        result = pair->run(scenarios_[*index]);
      } catch (const std::exception& exception) {
        result.failure = exception.what();
      }
      result.program = program;
      if (!result.passed() || ++runs == options_.runs_of_one) pair.reset();
      put(*index, std::move(result));
    }
  }

  std::vector<Done> done() const {
    std::vector<Done> done;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (results_[i]) done.push_back({scenarios_[i], *results_[i]});
    }
    return done;
  }

 private:
  std::string next_program() {
    const std::lock_guard lock(mutex_);
    return options_.programs[pairs_made_++ % options_.programs.size()];
  }

  void print_progress(const std::string& what) const {
    if (options_.verbose) fmt::print(stderr, "{}\n", what);
  }

  std::unique_ptr<Pair> make_pair(const std::string& program) {
    return std::make_unique<Pair>(program_of(program), options_.host_options);
  }

  std::optional<std::size_t> take() {
    const std::lock_guard lock(mutex_);
    if (next_ == scenarios_.size() || failures_ >= options_.max_failures) return std::nullopt;
    return next_++;
  }

  void put(std::size_t index, Result result) {
    const std::lock_guard lock(mutex_);
    const std::string what = scenarios_[index].describe();
    if (!result.passed()) {
      ++failures_;
      fmt::print(stderr, "run {}: {}: {}: {}\n", index, result.program, what, result.failure);
    } else if (options_.verbose) {
      fmt::print(stderr,
                 "run {}: {}: {}: {}, exit status {}, well again after {:.0f} ms, {:.0f} ms\n",
                 index, result.program, what,
                 result.ended      ? "killed"
                 : result.migrated ? "destination"
                                   : "source",
                 result.exit_code, result.recovery_ms, result.total_ms);
    }
    results_[index] = std::move(result);
  }

  const TrialOptions& options_;
  std::vector<std::optional<Result>> results_;
  const std::vector<Scenario>& scenarios_;
  std::mutex mutex_;
  unsigned pairs_made_ = 0;
  std::size_t next_ = 0;
  unsigned failures_ = 0;
};

}  // namespace

std::vector<Done> run_all(const std::vector<Scenario>& scenarios, const TrialOptions& options) {
  const std::uint64_t before = unclaimed_hugepages();
  Queue queue(scenarios, options);
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < options.pairs; ++i) threads.emplace_back([&queue] { queue.work(); });
  }
  std::vector<Done> done = queue.done();
  const std::uint64_t after = unclaimed_hugepages();
  if (after > before) {
    Result result;
    result.failure = fmt::format("the limit of hugepages is {} too high\n", after - before);
    fmt::print(stderr, "{}", result.failure);
    done.push_back({Scenario{}, result});
  }
  return done;
}

}  // namespace gcr::fault::test
