// Work that must not stop halfway, even if the caller's process dies.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>

#include "src/base/result.h"

namespace gcr::criu {

/// Does `work` in a process of its own that shares the caller's memory and descriptors, and waits
/// for its end, as in vfork(2). The death of the caller's process does not end it. What `work`
/// traces is let go at its end. kInternal if it ends without a result. `work` must not end threads
/// or start any, and takes milliseconds.
Status run_apart(const std::function<Status()>& work);

/// Where those that work side by side wait for each other. They share what becomes of all.
class Meeting {
 public:
  explicit Meeting(std::size_t parties) : parties_(parties) {}

  /// Waits until all have come; the last one does `once` then, if all is well. Gives all the same:
  /// an error of one of them or of `once`, also if one will never come. All call it equally often.
  Status meet(Status mine, const std::function<Status()>& once = {});

  /// It comes to no further meeting.
  void leave();

 private:
  void open(const std::function<Status()>& once);

  std::mutex mutex_;
  std::condition_variable opened_;
  const std::size_t parties_;
  std::size_t waiting_ = 0;
  std::size_t left_ = 0;
  std::size_t meetings_ = 0;  ///< that have taken place
  Status all_;                ///< what became of them; an error stays
};

/// run_apart() with `parties` processes at once, numbered from 0. The first error in their order.
Status run_apart(std::size_t parties,
                 const std::function<Status(std::size_t number, Meeting& others)>& work);

}  // namespace gcr::criu
