// Usage: output-gap FILE. Until SIGTERM or SIGINT, records when FILE is written to; then prints the
// longest time, in milliseconds, between two writes. For a program that prints without pause this
// is its downtime, seen from outside, the same for every tool that moves it.
#include <poll.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "src/base/unique_fd.h"

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  if (argc != 2) {
    std::fprintf(stderr, "usage: output-gap FILE\n");
    return 2;
  }
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  const gcr::UniqueFd signals(signalfd(-1, &ending, SFD_CLOEXEC));
  const gcr::UniqueFd writes(inotify_init1(IN_CLOEXEC));
  if (!signals || !writes || inotify_add_watch(writes.get(), argv[1], IN_MODIFY) < 0) {
    std::perror(argv[1]);
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  Clock::time_point last{};
  Clock::duration longest{};
  for (;;) {
    pollfd entries[] = {{writes.get(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    if (poll(entries, 2, -1) < 0) continue;
    if ((entries[0].revents & POLLIN) != 0) {
      char events[4096];
      if (read(writes.get(), events, sizeof(events)) < 0) return 1;
      const auto now = Clock::now();
      if (last != Clock::time_point{}) longest = std::max(longest, now - last);
      last = now;
    }
    if ((entries[1].revents & POLLIN) != 0) break;
  }
  std::printf("%.3f\n", std::chrono::duration<double, std::milli>(longest).count());
}
