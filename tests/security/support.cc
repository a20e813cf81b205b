#include "tests/security/support.h"

#include <grp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <stdexcept>

namespace gcr::daemon::test {
namespace {

void become(uid_t uid) {
  if (::setgroups(0, nullptr) != 0 || ::setresgid(uid, uid, uid) != 0 ||
      ::setresuid(uid, uid, uid) != 0) {
    ::_exit(99);
  }
}

}  // namespace

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Finished run_cli(const std::vector<std::string>& words, uid_t uid) {
  std::vector<std::string> all{"/usr/bin/env", "-i", "PATH=/usr/bin:/bin"};
  if (uid != 0) {
    const std::string id = std::to_string(uid);
    all.insert(all.end(), {"setpriv", "--reuid=" + id, "--regid=" + id, "--clear-groups"});
  }
  all.emplace_back(GCR_CLI);
  all.insert(all.end(), words.begin(), words.end());
  return run_to_end(all);
}

Finished list_with(const control::TlsFiles& tls, const control::Endpoint& agent) {
  std::vector<std::string> words{"list",   agent.to_string(), "--ca",  tls.authority,
                                 "--cert", tls.certificate,   "--key", tls.key};
  if (!tls.revoked.empty()) words.insert(words.end(), {"--crl", tls.revoked});
  return run_cli(words);
}

Sleeper::Sleeper(const std::function<void()>& prepare) {
  int ready[2];
  if (::pipe(ready) != 0) throw std::runtime_error("no pipe");
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    prepare();
    const bool told = ::write(ready[1], "x", 1) == 1;
    if (told) {
      for (;;) ::pause();
    }
    ::_exit(1);
  }
  char byte = 0;
  ::close(ready[1]);
  const bool prepared = pid_ > 0 && ::read(ready[0], &byte, 1) == 1;
  ::close(ready[0]);
  if (!prepared) throw std::runtime_error("the process did not get ready");
}

// A change of user makes a process untraceable; executing another program reverts that.
Sleeper::Sleeper(uid_t uid)
    : Sleeper([uid] {
        become(uid);
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::prctl(PR_SET_DUMPABLE, 1);
      }) {}

Sleeper::~Sleeper() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace gcr::daemon::test
