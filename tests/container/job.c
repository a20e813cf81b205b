// A program in containers under test: job MODE [ARGUMENT]. It says in lines what it does.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

/// Prints the lines of a file that begin with `start`.
static void print_lines(const char* path, const char* start) {
  char line[1024];
  FILE* file = fopen(path, "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, start, strlen(start)) == 0) fputs(line, stdout);
  }
  if (file != NULL) fclose(file);
}

/// exit N: ends with N.
static int exit_with(const char* status) { return atoi(status); }

/// read FILE: copies it to standard output.
static int read_file(const char* path) {
  print_lines(path, "");
  return 0;
}

/// variable NAME: its value.
static int print_variable(const char* name) {
  const char* value = getenv(name);
  printf("%s\n", value != NULL ? value : "(none)");
  return 0;
}

/// facts: what it was started with.
static int print_facts(const char* none) {
  (void)none;
  static const char* const kKeys[] = {
      "Umask:",  "Uid:",    "Gid:",    "Groups:", "SigBlk:", "SigIgn:",    "SigCgt:",
      "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:"};
  for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; ++i)
    print_lines("/proc/self/status", kKeys[i]);
  print_lines("/proc/self/limits", "");
  char folder[4096] = "";
  printf("in %s\n", getcwd(folder, sizeof folder));
  printf("leads its session: %d, its group: %d\n", getsid(0) == getpid(), getpgrp() == getpid());
  printf("terminal: %d, in the foreground: %d\n", isatty(0), tcgetpgrp(0) == getpgrp());
  for (int fd = 0; fd < 16; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) printf("descriptor %d\n", fd);
  }
  return 0;
}

/// signals: says which signals come, but for SIGURG; SIGTERM ends it with 7.
static int print_signals(const char* none) {
  (void)none;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, NULL);
  puts("ready");
  while (1) {
    siginfo_t info;
    // The Go runtime in runc sends itself SIGURG, and runc passes it on.
    if (sigwaitinfo(&all, &info) < 0 || info.si_signo == SIGURG) continue;
    printf("signal %d", info.si_signo);
    if (info.si_code == SI_QUEUE) printf(" with %d", info.si_value.sival_int);
    puts("");
    if (info.si_signo == SIGTERM) return 7;
  }
}

/// wait: with default signal handling.
static int wait_for_ever(const char* none) {
  (void)none;
  puts("ready");
  while (1) pause();
  return 0;
}

static void print_parent(void) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/status", getppid());
  print_lines(path, "Name:");
}

/// Starts a process whose parent ends at once; it runs `then` afterwards. Returns its PID.
static pid_t start_orphan(void (*then)(void)) {
  int pids[2];
  if (pipe(pids) != 0) exit(1);
  if (fork() == 0) {
    const pid_t child = getpid();
    const pid_t orphan = fork();
    if (orphan != 0) _exit(write(pids[1], &orphan, sizeof orphan) != sizeof orphan);
    while (getppid() == child) sched_yield();
    then();
    _exit(0);
  }
  pid_t orphan = 0;
  if (wait(NULL) < 0 || read(pids[0], &orphan, sizeof orphan) != sizeof orphan) exit(1);
  return orphan;
}

/// orphan: says who the parent of an orphan is, and waits until it has been reaped.
static int leave_orphan(const char* none) {
  (void)none;
  const pid_t orphan = start_orphan(print_parent);
  while (kill(orphan, 0) == 0) sched_yield();
  puts("reaped");
  return 0;
}

static void be_daemon(void) {
  setsid();
  wait_for_ever(NULL);
}

/// daemon: with a process that has left its parent and its session.
static int start_daemon(const char* none) {
  (void)none;
  start_orphan(be_daemon);
  return wait_for_ever(NULL);
}

static const char* fifo;

static void end_as_told(void) {
  char digits[8] = "";
  close(STDOUT_FILENO);
  close(STDERR_FILENO);
  const int file = open(fifo, O_RDONLY);
  if (read(file, digits, sizeof digits - 1) <= 0) _exit(1);
  _exit(atoi(digits));
}

/// root FIFO: leaves a process behind, as a restore does, and says its PID. That reads from FIFO
/// what it ends with.
static int leave_root(const char* path) {
  fifo = path;
  printf("%d\n", start_orphan(end_as_told));
  return 0;
}

/// order N: an order to gcr-init from a process of the container.
static int forge_order(const char* value) {
  const union sigval number = {.sival_int = atoi(value)};
  return sigqueue(1, SIGRTMAX - 1, number) != 0;
}

/// kill-all: signals all processes, and says which signals come back until SIGTERM does.
static int signal_all(const char* none) {
  (void)none;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, NULL);
  printf("signalled %d\n", kill(-1, SIGUSR1) == 0);
  return print_signals(NULL);
}

/// userfaultfd: whether the call is allowed.
static int try_userfaultfd(const char* none) {
  (void)none;
  const long made = syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */);
  puts(made >= 0 ? "allowed" : strerror(errno));
  return 0;
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    int (*run)(const char*);
  } kModes[] = {
      {"exit", exit_with},      {"read", read_file},        {"variable", print_variable},
      {"facts", print_facts},   {"signals", print_signals}, {"wait", wait_for_ever},
      {"orphan", leave_orphan}, {"daemon", start_daemon},   {"root", leave_root},
      {"order", forge_order},   {"kill-all", signal_all},   {"userfaultfd", try_userfaultfd}};
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (size_t i = 0; argc > 1 && i < sizeof kModes / sizeof *kModes; ++i) {
    if (strcmp(argv[1], kModes[i].name) == 0) return kModes[i].run(argc > 2 ? argv[2] : "");
  }
  fprintf(stderr, "job: unknown mode\n");
  return 2;
}
