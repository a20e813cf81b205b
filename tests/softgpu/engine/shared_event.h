// Events that processes share. As the real driver does, a process stores those that it creates in
// files on /dev/shm whose names have its user, its PID and a number; a handle names such a file and
// a place in it. So a handle is valid wherever a process with that PID has the same /dev/shm. A
// file is removed with its last event.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "src/base/unique_fd.h"
#include "tests/softgpu/engine/ranges.h"
#include "tests/softgpu/engine/result.h"

namespace gcr::softgpu {

/// Any thread of any process. Using one after its creator has destroyed it is undefined.
class SharedEvent {
 public:
  /// A new one, never recorded. Null if there is no file for it.
  static std::shared_ptr<SharedEvent> create();
  /// kInvalidContext in the process that created it, kInvalidValue if it no longer exists.
  static Result open(std::span<const char, kIpcHandleBytes> handle,
                     std::shared_ptr<SharedEvent>* event);
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  void write_handle(std::span<char, kIpcHandleBytes> handle) const;

  /// The number of a new record, for passed() when the stream has reached it.
  std::uint64_t record();
  void passed(std::uint64_t record);
  /// Of the last record of any process; 0 before the first.
  std::uint64_t last_record() const;
  bool has_passed(std::uint64_t record) const;

 private:
  struct File;
  struct Slot {
    std::atomic<std::uint64_t> taken;
    std::atomic<std::uint64_t> recorded;
    std::atomic<std::uint64_t> passed;
  };

  SharedEvent(std::shared_ptr<File> file, std::uint64_t place);
  Slot& slot() const;

  const std::shared_ptr<File> file_;
  const std::uint64_t place_;
};

}  // namespace gcr::softgpu
