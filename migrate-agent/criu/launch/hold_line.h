// The agent's line to a restoring CRIU that waits (launch::Hold).
#pragma once

#include <sys/types.h>

#include <utility>

#include "migrate-agent/criu/launch/launch.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

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
  Status let_go_on();

 private:
  Result<launch::HoldMessage> receive(launch::Hold expected);
  Status send(const launch::HoldMessage& message);

  UniqueFd socket_;
};

}  // namespace gcr::criu
