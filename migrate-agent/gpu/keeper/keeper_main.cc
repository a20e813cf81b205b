// gcr-keeper holds descriptors open for as long as it lives, and does nothing else (keeper.h). The
// agent starts it with the descriptors that layout.h names. It receives others over its socket, in
// an order that gives them known numbers, and then makes the table visible: that arms it. Until it
// is armed it ends when its socket is closed; from then on only SIGKILL ends it.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "migrate-agent/gpu/keeper/layout.h"
#include "src/base/descriptor_passing.h"
#include "src/base/units.h"

namespace {

using namespace gcr::keeper::layout;

void report(Event event, int error) {
  const Report report{event, error};
  while (send(kSocketFd, &report, sizeof(report), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

/// Reads and drops further packets first: a socket that is closed with unread packets loses the
/// report.
[[noreturn]] void fail(int error) {
  report(Event::kFailed, error);
  char byte = 0;
  while (recv(kSocketFd, &byte, sizeof(byte), 0) > 0) {
  }
  _exit(1);
}

/// Raises the limit of open files as far as the kernel allows, and makes this the last process that
/// the kernel kills when memory runs out: it holds memory that cannot be restored otherwise. What
/// the kernel refuses is skipped.
void prepare() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score < 0) return;
  static const char least[] = "-1000";
  if (write(score, least, sizeof(least) - 1) < 0) errno = 0;
  close(score);
}

/// Receives one packet, whose descriptors must get the numbers from `next` on. Gives their count.
int receive(int next) {
  char byte = 0;
  int descriptors[gcr::kMaxPassedDescriptors];
  const gcr::ReceivedMessage received =
      gcr::receive_with_descriptors(kSocketFd, gcr::writable_bytes_of(byte), descriptors, 0);
  if (received.length <= 0) _exit(0);  // the agent has closed its end
  if (received.truncated) fail(EMFILE);
  if (received.count == 0) fail(EPROTO);
  const int count = static_cast<int>(received.count);
  for (int i = 0; i < count; ++i) {
    if (descriptors[i] != next + i) fail(EBADF);
  }
  return count;
}

int announced_count() {
  TableHeader table{};
  if (pread(kReceivedTableFd, &table, sizeof(table), 0) != sizeof(table) || table.magic != kMagic ||
      table.count > gcr::kMaxBuffers) {
    fail(EPROTO);
  }
  return static_cast<int>(table.count);
}

}  // namespace

int main() {
  struct stat socket {};
  if (fstat(kSocketFd, &socket) != 0 || !S_ISSOCK(socket.st_mode)) {
    static const char text[] = "gcr-keeper is started by migrate-agent to hold descriptors\n";
    return write(STDERR_FILENO, text, sizeof(text) - 1) < 0 ? 3 : 2;
  }
  prepare();
  report(Event::kReady, 0);
  if (receive(kReceivedTableFd) != 1) fail(EPROTO);
  const int count = announced_count();
  for (int received = 0; received < count;) received += receive(kFirstBufferFd + received);
  if (dup3(kReceivedTableFd, kTableFd, O_CLOEXEC) != kTableFd) fail(errno);
  report(Event::kArmed, 0);
  close(kSocketFd);
  for (;;) pause();
}
