// Records where time is spent: the phases of a migration on one side, relative to one origin.
// Phases of one track follow each other or are nested. The tracks are:
//   course   the steps that users see: preflight, prepare, pre-copy, switchover, restore
//   process  what is done to the process: gate, checkpoint, dump, restore
//   vram     what is done with VRAM: digests, rounds, verification
// images   the sending of CRIU images
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "proto/control.pb.h"
#include "src/base/units.h"

namespace gcr::worker {

/// Collects phases from any thread.
class Phases {
 public:
  using Clock = std::chrono::steady_clock;

  Phases(std::string side, Clock::time_point origin) : side_(std::move(side)), origin_(origin) {}

  /// Runs `work` as the phase `name` of `track` and returns its result.
  template <class Work>
  auto time(const char* track, const char* name, Work&& work) {
    const Timer timer(*this, track, name);
    return std::forward<Work>(work)();
  }

  /// Records the phase `name` of `track` from here to the end of the scope.
  class Timer {
   public:
    Timer(Phases& phases, const char* track, const char* name)
        : phases_(phases), track_(track), name_(name), start_(Clock::now()) {}
    ~Timer() { phases_.add(track_, name_, start_, Clock::now()); }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    Phases& phases_;
    const char* track_;
    const char* name_;
    Clock::time_point start_;
  };

  /// Adds a phase that is only known after its end.
  void add(const char* track, const char* name, Clock::time_point start, Clock::time_point end) {
    proto::PhaseTime phase;
    phase.set_name(name);
    phase.set_track(track);
    phase.set_host(side_);
    phase.set_start_ms(in_milliseconds(start - origin_));
    phase.set_duration_ms(in_milliseconds(end - start));
    const std::lock_guard lock(mutex_);
    phases_.push_back(std::move(phase));
  }

  /// Returns a moment on the time axis of the phases.
  double since_origin_ms(Clock::time_point time) const { return in_milliseconds(time - origin_); }

  /// Returns all phases so far, in the order in which they ended.
  std::vector<proto::PhaseTime> list() const {
    const std::lock_guard lock(mutex_);
    return phases_;
  }

 private:
  std::string side_;
  Clock::time_point origin_;
  mutable std::mutex mutex_;
  std::vector<proto::PhaseTime> phases_;
};

}  // namespace gcr::worker
