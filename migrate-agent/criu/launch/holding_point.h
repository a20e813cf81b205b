// Where a prepared CRIU waits: a FIFO in the place of a file that it reads after its preparations
// (probing the kernel alone takes 60 ms) and before it touches any process. And the agent's line to
// a restoring CRIU that waits (launch::Hold).
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "migrate-agent/criu/launch/launch.h"
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

  /// Before CRIU is started: puts the FIFO `name` into `directory`, in the place of any such file.
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

/// Move-only; one thread at a time. Closing it while CRIU waits keeps CRIU waiting.
class HoldLine {
 public:
  HoldLine() = default;
  explicit HoldLine(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  /// Whether CRIU has said something that was not received yet.
  bool has_word() const;

  /// Receives CRIU's word that it waits; gives CRIU's PID in its PID namespace. kInternal if CRIU
  /// has ended or says something else, kTimeout after ten seconds.
  Result<pid_t> wait_for_criu();

  /// Has a request done while CRIU waits, and gives the answer. The kernel's error if CRIU could
  /// not do it; otherwise as above.
  Result<launch::HoldMessage> ask(const launch::HoldMessage& request);

  /// CRIU no longer waits.
  Status let_go_on() { return send({.what = launch::Hold::kGoOn}); }

 private:
  Result<launch::HoldMessage> receive(launch::Hold expected);
  Status send(const launch::HoldMessage& message);

  UniqueFd socket_;
};

}  // namespace gcr::criu
