// Where the time goes: phases of a migration on one side, relative to one starting point.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "proto/control.pb.h"

namespace gcr::agent {

/// Collects phases from any thread.
class Phases {
 public:
  using Clock = std::chrono::steady_clock;

  Phases(std::string side, Clock::time_point origin) : side_(std::move(side)), origin_(origin) {}

  /// Runs `work` as the phase `name` and gives what it returned.
  template <class Work>
  auto time(const std::string& name, Work&& work) {
    const Timer timer(*this, name);
    return std::forward<Work>(work)();
  }

  /// The phase `name` lasts from here to the end of the scope.
  class Timer {
   public:
    Timer(Phases& phases, std::string name)
        : phases_(phases), name_(std::move(name)), start_(Clock::now()) {}
    ~Timer() { phases_.add(name_, start_, Clock::now()); }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    Phases& phases_;
    std::string name_;
    Clock::time_point start_;
  };

  static double milliseconds(Clock::duration duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
  }

  /// All phases so far, in the order in which they ended.
  std::vector<proto::PhaseTime> list() const {
    const std::lock_guard lock(mutex_);
    return phases_;
  }

 private:
  void add(const std::string& name, Clock::time_point start, Clock::time_point end) {
    proto::PhaseTime phase;
    phase.set_name(name);
    phase.set_host(side_);
    phase.set_start_ms(milliseconds(start - origin_));
    phase.set_duration_ms(milliseconds(end - start));
    const std::lock_guard lock(mutex_);
    phases_.push_back(std::move(phase));
  }

  std::string side_;
  Clock::time_point origin_;
  mutable std::mutex mutex_;
  std::vector<proto::PhaseTime> phases_;
};

}  // namespace gcr::agent
