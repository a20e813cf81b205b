// What these tests share: the command as run by different users, and processes of different users.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/daemon/agent_process.h"

namespace gcr::daemon::test {

/// Users that do not exist on the machine.
inline constexpr uid_t kAlice = 71001;
inline constexpr uid_t kBob = 71002;

inline constexpr int kNotAuthorised = 5;  ///< gcr-migrate's exit status

/// gcr-migrate with these arguments, as this user.
Finished run_cli(const std::vector<std::string>& words, uid_t uid = 0);

/// `gcr-migrate list AGENT` with these certificates.
Finished list_with(const control::TlsFiles& tls, const control::Endpoint& agent);

/// Of a whole file.
std::string text_of(const std::string& path);

/// A process that waits until it is killed, at the latest with this object.
class Sleeper {
 public:
  /// It has called `prepare` when the constructor returns.
  explicit Sleeper(const std::function<void()>& prepare);
  /// One of this user.
  explicit Sleeper(uid_t uid);
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

}  // namespace gcr::daemon::test
