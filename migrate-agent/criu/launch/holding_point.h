// Where a prepared CRIU waits: a FIFO in the place of a file that it reads after its preparations
// (probing the kernel alone takes 60 ms) and before it touches any process.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "migrate-agent/criu/launch/session.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// Move-only. Destroying it makes CRIU read an end of file and fail, and leaves no FIFO.
class HoldingPoint {
 public:
  HoldingPoint(HoldingPoint&& other) noexcept
      : path_(std::exchange(other.path_, std::filesystem::path{})),
        fifo_(std::move(other.fifo_)),
        opened_(std::move(other.opened_)) {}
  HoldingPoint& operator=(HoldingPoint&&) = delete;
  ~HoldingPoint() { remove(); }

  /// Puts the FIFO `name` into `directory`, in the place of any file of that name. Before CRIU is
  /// started.
  static Result<HoldingPoint> create(const std::filesystem::path& directory,
                                     const std::string& name);

  /// Waits until CRIU has opened it, then removes the FIFO from the directory: from now on a file
  /// of this name may be there. False if CRIU has ended instead.
  Result<bool> wait_until_reached(Session& session);

  /// Lets CRIU go on, with `content` as the content of the file; at most 64 KiB.
  Status pass(const std::string& content);

 private:
  HoldingPoint(std::filesystem::path path, UniqueFd fifo, UniqueFd opened)
      : path_(std::move(path)), fifo_(std::move(fifo)), opened_(std::move(opened)) {}

  void remove();

  std::filesystem::path path_;  ///< of the FIFO while it is in the directory
  UniqueFd fifo_;               ///< both ends, so that CRIU's open succeeds and its read waits
  UniqueFd opened_;             ///< an inotify that reports when CRIU opens the FIFO
};

}  // namespace gcr::criu
