// What several tests at the door share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/gpu/access/gates.h"
#include "src/base/units.h"
#include "tests/preload/door/subject_process.h"

namespace gcr::test {

inline constexpr std::chrono::milliseconds kLong = std::chrono::seconds(60);
inline constexpr std::chrono::milliseconds kNoLease{0};

inline Subject::Options without_library() {
  Subject::Options options;
  options.preload = false;
  return options;
}
inline Subject::Options with_descriptor_limit(unsigned long limit) {
  Subject::Options options;
  options.descriptor_limit = limit;
  return options;
}
inline Subject::Options in_new_pid_namespace() {
  Subject::Options options;
  options.new_pid_namespace = true;
  return options;
}

/// "alloc 0x200000" from a name and numbers.
template <class... Numbers>
std::string command(std::string name, Numbers... numbers) {
  ((name += " " + std::to_string(numbers)), ...);
  return name;
}

/// The value of a Result, or a failed test and an empty value.
template <class T>
T good(Result<T> result) {
  if (!result) {
    ADD_FAILURE() << result.error().message();
    return T();
  }
  return std::move(*result);
}
inline void good(Status status) {
  if (!status) ADD_FAILURE() << status.error().message();
}

/// Opens the door or ends the test: nothing else can be tested then.
inline gpu::Door door_of(const Subject& subject) {
  auto door = gpu::Door::open(subject.pid());
  if (!door) throw std::runtime_error(door.error().message());
  return std::move(*door);
}

inline Status quiesce(gpu::Door& door, std::chrono::milliseconds timeout,
                      std::chrono::milliseconds lease) {
  return gpu::Gates({{door.pid(), &door}}).quiesce(timeout, lease);
}

using Held = std::vector<std::pair<std::uint64_t, UniqueFd>>;

/// Everything exported: the descriptors that an agent holds of the process.
inline Held take_over(gpu::Door& door) {
  std::vector<std::uint64_t> ids;
  for (const auto& allocation : good(door.allocations())) ids.push_back(allocation.local_id);
  Held held;
  for (gpu::ExportedAllocation& exported : good(door.take(ids))) {
    held.emplace_back(exported.allocation.local_id, std::move(exported.descriptor));
  }
  return held;
}

/// Detach and attach: for a moment only the descriptors here hold the memory.
inline void detach_and_attach(gpu::Door& door) {
  Held held = take_over(door);
  good(quiesce(door, kLong, kNoLease));
  good(door.detach());
  EXPECT_EQ(good(door.hello()).detached, 1u);
  good(door.attach(std::move(held)));
  good(door.resume());
}

/// A process with the first GPU's primary context, and its answers about cuMemAlloc.
class PlainMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    subject_.ask("init");
    context_ = subject_.value("primary 0");
  }
  std::uint64_t allocate(std::uint64_t bytes) { return subject_.value(command("alloc", bytes)); }
  void free(std::uint64_t address) { subject_.ask(command("free", address)); }
  void fill(std::uint64_t address, std::uint64_t bytes, std::uint64_t value) {
    subject_.ask(command("fill", address, bytes, value));
  }
  std::uint64_t sum(std::uint64_t address, std::uint64_t bytes) {
    return subject_.value(command("sum", address, bytes));
  }
  std::string range(std::uint64_t address) { return subject_.answer(command("range", address)); }
  std::uint64_t free_bytes() { return subject_.ask("info").at(0); }
  door::Summary summary() {
    gpu::Door door = door_of(subject_);
    return good(door.hello());
  }
  /// Allocations of these sizes keep their content through a detach, and while others are freed.
  void expect_contents_survive(const std::vector<std::uint64_t>& sizes) {
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> sums;
    for (std::uint64_t i = 0; i < sizes.size(); ++i) {
      const std::uint64_t address = allocate(sizes[i]);
      fill(address, sizes[i], i);
      sums[address] = {sizes[i], sum(address, sizes[i])};
    }
    gpu::Door door = door_of(subject_);
    detach_and_attach(door);
    for (const auto& [address, expected] : sums) {
      EXPECT_EQ(sum(address, expected.first), expected.second);
      free(address);
    }
  }

  Subject subject_;
  std::uint64_t context_ = 0;
};

/// A storm of 16 threads, with further numbers for the subject's command, through ten detaches. The
/// number of allocations makes it last a while; GCR_STORM_ALLOCATIONS makes it longer.
template <class... Numbers>
void storm_through_ten_detaches(Subject& subject, gpu::Door& door, std::uint64_t context,
                                Numbers... numbers) {
  constexpr std::uint64_t kThreads = 16;
  constexpr std::uint64_t kRounds = 20;
  const char* chosen = std::getenv("GCR_STORM_ALLOCATIONS");
  const std::uint64_t allocations = chosen == nullptr ? 16000 : std::strtoull(chosen, nullptr, 0);
  // Every second step frees.
  const std::uint64_t steps = 2 * allocations / kThreads / kRounds;
  subject.ask(command("storm", context, kThreads, steps, kRounds, numbers...));
  for (std::uint64_t cycle = 0; cycle < 10; ++cycle) {
    while (subject.value("stormed") < cycle * 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    good(quiesce(door, kLong, kNoLease));
    Held held = take_over(door);
    good(door.detach());
    good(door.attach(std::move(held)));
    good(door.resume());
  }
  EXPECT_EQ(subject.answer("storm_end").substr(0, 2), "ok");
}

}  // namespace gcr::test
