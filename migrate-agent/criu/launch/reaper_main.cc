// gcr-reaper: the init of the PID namespace that a restored process lives in.
//
// Process 1 of a new PID and mount namespace. The agent starts it with descriptors as in launch.h:
//   gcr-reaper <pid after which CRIU's own PIDs come, 0: any> <criu> <arguments>...
// Its environment goes to CRIU, in addition to what every CRIU has.
// It joins a session keyring of its own, which is that of the restored process too. It starts CRIU,
// which restores the process as a child of this namespace, then reaps all processes that end, and
// ends itself when nothing is left. Until the agent releases it over the control socket, it ends
// when the agent dies, and the namespace with it, so that a restored process that was never
// committed is gone. After that it survives the agent: it has a session of its own, and no
// descriptor of the agent but the directory for the exit status. SIGTERM and SIGINT sent to it from
// outside go to every process of the namespace; SIGKILL ends the namespace.
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "migrate-agent/criu/launch/launch.h"
#include "src/base/session_keyring.h"

namespace {

using gcr::criu::launch::Event;
using gcr::criu::launch::fail_and_exit;
using gcr::criu::launch::kHoldFd;
using gcr::criu::launch::kImagesFd;
using gcr::criu::launch::kLibraryFd;
using gcr::criu::launch::kPluginFd;
using gcr::criu::launch::kRemovedFiles;
using gcr::criu::launch::kStatusFd;
using gcr::criu::launch::Step;

constexpr int kControlFd = gcr::criu::launch::kRpcFd;

/// Closes everything from the agent except the descriptors that it was started with.
void stand_alone() {
  static_assert(kImagesFd + 1 == kLibraryFd && kLibraryFd < kHoldFd && kHoldFd + 1 == kPluginFd &&
                kPluginFd + 1 == kStatusFd);
  close_range(kLibraryFd + 1, kHoldFd - 1, 0);
  close_range(kStatusFd + 1, ~0u, 0);
  fcntl(kStatusFd, F_SETFD, FD_CLOEXEC);
  gcr::criu::launch::reset_signals();
  setsid();
  umask(022);
  prctl(PR_SET_NAME, "gcr-reaper");
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0 || chdir("/") != 0) fail_and_exit(kControlFd, Step::kDescriptors);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (dup2(nothing, fd) != fd) fail_and_exit(kControlFd, Step::kDescriptors);
  }
  if (nothing > STDERR_FILENO) close(nothing);
  fcntl(kControlFd, F_SETFD, FD_CLOEXEC);
}

/// Later mounts of the host appear here, but not the other way round; /proc shows this namespace.
void make_mounts() {
  if (mount(nullptr, "/", nullptr, MS_SLAVE | MS_REC, nullptr) != 0) {
    fail_and_exit(kControlFd, Step::kMountsPrivate);
  }
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    fail_and_exit(kControlFd, Step::kMountProc);
  }
  // The directory is the host's, and stays; what is in it is this namespace's.
  if ((mkdir(kRemovedFiles, 0700) != 0 && errno != EEXIST) ||
      mount("gcr-removed", kRemovedFiles, "tmpfs", MS_NOSUID, "mode=700") != 0) {
    fail_and_exit(kControlFd, Step::kMountRemovedFiles);
  }
}

/// In one piece: a reader that waits for the file finds all of it. A failure cannot be reported.
void write_status(int status) {
  char text[16];
  const int length = snprintf(text, sizeof(text), "%d\n", status);
  const int file =
      openat(kStatusFd, "status.new", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file < 0) return;
  if (write(file, text, length) == length) renameat(kStatusFd, "status.new", kStatusFd, "status");
  close(file);
}

/// What belongs to this namespace.
struct Tree {
  pid_t criu = 0;
  pid_t root = 0;  ///< known when the agent has released it
};

/// Reaps all that has ended. False when no child is left.
bool reap(const Tree& tree) {
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
    if (pid == tree.criu) {
      gcr::criu::launch::send_control(kControlFd, {Event::kCriuExited, Step::kNone, status});
    }
    if (pid > 0 && pid == tree.root) write_status(status);
    if (pid == 0) return true;
    if (pid < 0 && errno != EINTR) return false;
  }
}

/// The agent's only message is the release; an end of file means that the agent died, and ends us.
void hear_agent(Tree& tree) {
  gcr::criu::launch::ControlMessage message{};
  const ssize_t got = recv(kControlFd, &message, sizeof(message), 0);
  if (got < 0 && errno == EINTR) return;
  if (got != sizeof(message) || message.event != Event::kReleased) _exit(1);
  tree.root = message.value;
  close(kControlFd);
}

void pass_signal_on(int signals) {
  signalfd_siginfo info{};
  if (read(signals, &info, sizeof(info)) != sizeof(info)) return;
  const int signal_number = static_cast<int>(info.ssi_signo);
  if (signal_number == SIGTERM || signal_number == SIGINT) kill(-1, signal_number);
}

[[noreturn]] void reap_until_empty(Tree tree, int signals) {
  pollfd watched[] = {{signals, POLLIN, 0}, {kControlFd, POLLIN, 0}};
  while (reap(tree)) {
    if (poll(watched, 2, -1) < 0) continue;
    if (watched[0].revents != 0) pass_signal_on(signals);
    if (watched[1].revents == 0) continue;
    hear_agent(tree);
    if (fcntl(kControlFd, F_GETFD) < 0) watched[1].fd = -1;
  }
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || getpid() != 1) {
    static const char text[] = "gcr-reaper is started by migrate-agent as init of a namespace\n";
    return write(STDERR_FILENO, text, sizeof(text) - 1) < 0 ? 3 : 2;
  }
  stand_alone();
  if (!gcr::leave_session_keyring()) fail_and_exit(kControlFd, Step::kKeyring);
  make_mounts();
  if (strcmp(argv[1], "0") != 0 && !gcr::criu::launch::number_after(argv[1])) {
    fail_and_exit(kControlFd, Step::kFirstPid);
  }
  const auto own = [](int fd) { return fcntl(fd, F_GETFD) >= 0 ? fd : -1; };
  const gcr::criu::launch::Inside inside{
      .library = own(kLibraryFd), .hold = own(kHoldFd), .plugin = own(kPluginFd)};
  sigset_t waited;
  sigemptyset(&waited);
  for (const int signal_number : {SIGCHLD, SIGTERM, SIGINT}) sigaddset(&waited, signal_number);
  sigprocmask(SIG_BLOCK, &waited, nullptr);  // before the fork: no SIGCHLD may be missed
  const int signals = signalfd(-1, &waited, SFD_CLOEXEC);
  if (signals < 0) fail_and_exit(kControlFd, Step::kDescriptors);
  const pid_t criu = fork();
  if (criu < 0) fail_and_exit(kControlFd, Step::kFork);
  if (criu == 0) {
    gcr::criu::launch::exec_criu(argv + 2, environ, kControlFd, kImagesFd, inside);
  }
  // Only what this was started with: what was opened since may have the number of one that was not.
  for (const int fd : {kImagesFd, inside.library, inside.hold, inside.plugin}) {
    if (fd >= 0) close(fd);
  }
  reap_until_empty({.criu = criu}, signals);
}
