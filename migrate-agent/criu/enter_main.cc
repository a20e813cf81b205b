// gcr-enter.so: has CRIU enter the mount namespace of the process that it dumps.
//
// The agent executes CRIU in its own mount namespace with this object preloaded, so that CRIU's
// file, its loader and its libraries are the agent's. Once they are mapped, and before main(), CRIU
// enters the namespace that the agent holds, and waits until the agent has checked what it sees
// there. Other programs that run with this object (a shell that starts CRIU) are not affected.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "migrate-agent/criu/launch.h"

// CRIU exports its functions, for its plugins.
extern "C" __attribute__((weak)) int cr_dump_tasks(int pid);

namespace {

using namespace gcr::criu::launch;

__attribute__((constructor)) void enter() {
  if (cr_dump_tasks == nullptr) return;
  if (setns(kMountsFd, CLONE_NEWNS) != 0 || fchdir(kImagesFd) != 0) {
    fail_and_exit(kControlFd, Step::kEnterNamespaces);
  }
  // CRIU looks for programs in the images directory, and finds none.
  if (unsetenv("LD_PRELOAD") != 0 || setenv("PATH", "", 1) != 0) {
    fail_and_exit(kControlFd, Step::kEnterNamespaces);
  }
  send_control(kControlFd, {Event::kEntered, Step::kNone, 0, 0}, -1);
  ControlMessage answer{};
  ssize_t got = 0;
  while ((got = recv(kControlFd, &answer, sizeof(answer), 0)) < 0 && errno == EINTR) {
  }
  if (got != sizeof(answer) || answer.event != Event::kMayGoOn) _exit(127);
  close(kControlFd);
  close(kEnterFd);
  close(kMountsFd);
}

}  // namespace
