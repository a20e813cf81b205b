// Preloaded into a program: sets, before main, what Linux lets a process and its threads set for
// themselves apart from memory and descriptors, in the first thread and in one of its own. Each of
// these two appends a line to the file GCR_STATES when it gets kTell: "first" or "second", and
// "name=value" for each state.
//
// GCR_SANDBOX: "all" sets these states, "none" sets nothing. "landlock" puts the program into a
// Landlock domain, "filter" lets the kernel end it if it asks for
// a list of robust futexes, "seal" seals a mapping, "mappings" gives one a NUMA policy of its own.
// In "tiles" the second thread multiplies with AMX all the time, and counts right and wrong
// products. The second thread of "all" enters a Landlock domain when it gets kConfine.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/membarrier.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#define PR_GET_MEMORY_MERGE 68
#endif
enum { kMembarrierGetRegistrations = 1 << 9 };  // Linux 6.3
enum { kLandlockCreateRuleset = 444, kLandlockRestrictSelf = 446, kMseal = 462 };
enum { kIoWhoProcess = 1, kIoBestEffort = 2 << 13, kIoIdle = 3 << 13 };
enum { kCacheFlush = 2 };  // PR_SPEC_L1D_FLUSH, Linux 5.15
enum { kGetCpuid = 0x1011, kSetCpuid = 0x1012 };
enum { kGetPermissions = 0x1022, kRequestPermission = 0x1023, kTileData = 18 };
enum { kTell = 40, kConfine = 41 };  // real-time signals without other uses

static int output = -1;
static _Thread_local const char* self = "";
static char* sealed;
static char* bound;
static volatile long right_products, wrong_products;

enum { kConnections, kDatagrams, kLocal, kSockets };
static int sockets[kSockets] = {-1, -1, -1};
static const struct {
  int socket, level, name, value;
} kSocketOptions[] = {
    {kConnections, SOL_SOCKET, SO_MAX_PACING_RATE, 1 << 20},
    {kConnections, IPPROTO_TCP, TCP_USER_TIMEOUT, 54321},
    {kConnections, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1 << 16},
    {kConnections, IPPROTO_TCP, TCP_NODELAY, 1},
    {kConnections, IPPROTO_IP, IP_RECVTTL, 1},
    {kDatagrams, IPPROTO_IPV6, IPV6_TCLASS, 0x20},
    {kDatagrams, IPPROTO_IPV6, IPV6_RECVERR, 1},
    {kDatagrams, SOL_SOCKET, SO_TIMESTAMPNS, 1},
    {kLocal, SOL_SOCKET, SO_TIMESTAMP, 1},
};
static const char kCongestion[] = "reno";

static void check(long result, const char* what) {
  if (result >= 0) return;
  fprintf(stderr, "states: cannot set %s: %s\n", what, strerror(errno));
  abort();
}

static long read_number(const char* path) {
  char text[32] = "";
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 || read(file, text, sizeof(text) - 1) < 0) return -1;
  close(file);
  return strtol(text, NULL, 16);
}

static int locks_future(void) {
  int locks = 0;
  char* page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  unsigned char there = 0;
  if (page == MAP_FAILED) return -1;
  if (mincore(page, 4096, &there) == 0) locks = there & 1;
  munmap(page, 4096);
  return locks;
}

static int umask_now(void) {
  const mode_t mask = umask(0);
  umask(mask);
  return (int)mask;
}

/// -1 of an option without a socket.
static int tell_sockets(char* line, size_t room) {
  char congestion[16] = "";
  socklen_t length = sizeof(congestion);
  getsockopt(sockets[kConnections], IPPROTO_TCP, TCP_CONGESTION, congestion, &length);
  int used = snprintf(line, room, " sockets=%s", congestion);
  for (size_t i = 0; i < sizeof(kSocketOptions) / sizeof(kSocketOptions[0]); ++i) {
    int value = -1;
    length = sizeof(value);
    getsockopt(sockets[kSocketOptions[i].socket], kSocketOptions[i].level, kSocketOptions[i].name,
               &value, &length);
    used += snprintf(line + used, room - (size_t)used, ",%d", value);
  }
  return used;
}

static void tell(int signal) {
  const int error = errno;
  char line[2048];
  int used = snprintf(line, sizeof(line), "%s", self);
  used += tell_sockets(line + used, sizeof(line) - (size_t)used);
#define SAY(name, value) \
  used += snprintf(line + used, sizeof(line) - (size_t)used, " " name "=%ld", (long)(value))
  int number = -1;
  unsigned long nodes = 0;
  struct rlimit limit;
  struct sched_param priority;
  sigset_t blocked;
  stack_t stack;
  SAY("memory-deny-write-execute", prctl(PR_GET_MDWE, 0, 0, 0, 0));
  SAY("memory-merge", prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0));
  SAY("lock-future", locks_future());
  SAY("coredump-filter", read_number("/proc/self/coredump_filter"));
  SAY("timer-slack", prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0));
  SAY("personality", personality(0xffffffff));
  SAY("io-priority", syscall(SYS_ioprio_get, kIoWhoProcess, 0));
  SAY("io-flusher", prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0));
  SAY("machine-check", prctl(PR_MCE_KILL_GET, 0, 0, 0, 0));
  SAY("store-bypass", prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0));
  SAY("indirect-branch", prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, 0, 0, 0));
  SAY("cache-flush", prctl(PR_GET_SPECULATION_CTRL, kCacheFlush, 0, 0, 0));
  SAY("cpuid", syscall(SYS_arch_prctl, kGetCpuid));
  syscall(SYS_arch_prctl, kGetPermissions, &nodes);
  SAY("amx", nodes >> kTileData & 1);
  nodes = 0;
  prctl(PR_GET_TSC, &number, 0, 0, 0);
  SAY("time-stamp-counter", number);
  number = -1;
  syscall(SYS_get_mempolicy, &number, &nodes, 8 * sizeof(nodes), 0, 0);
  SAY("numa-mode", number);
  SAY("numa-nodes", nodes);
  // Restored by CRIU itself.
  SAY("thp-disabled", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
  SAY("no-new-privileges", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
  SAY("dumpable", prctl(PR_GET_DUMPABLE, 0, 0, 0, 0));
  prctl(PR_GET_CHILD_SUBREAPER, &number, 0, 0, 0);
  SAY("subreaper", number);
  prctl(PR_GET_PDEATHSIG, &number, 0, 0, 0);
  SAY("parent-death-signal", number);
  SAY("nice", getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid)));
  SAY("scheduler", sched_getscheduler(0));
  sched_getparam(0, &priority);
  SAY("priority", priority.sched_priority);
  SAY("umask", umask_now());
  getrlimit(RLIMIT_NPROC, &limit);
  SAY("processes-limit", limit.rlim_cur);
  pthread_sigmask(SIG_SETMASK, NULL, &blocked);
  SAY("blocked-signal", sigismember(&blocked, SIGUSR2));
  sigaltstack(NULL, &stack);
  SAY("signal-stack", stack.ss_size);
  SAY("membarrier", syscall(SYS_membarrier, kMembarrierGetRegistrations, 0, 0));
  // Replaced by the agent's value, or reset.
  SAY("foreign-key", syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user",
                             "gcr-test-secret", 0) >= 0);
  SAY("right-products", right_products);
  SAY("wrong-products", wrong_products);
  used += snprintf(line + used, sizeof(line) - (size_t)used, "\n");
  if (write(output, line, (size_t)used) != used) abort();
  errno = error;
  (void)signal;
}

/// Restricts only one right on files, which no test needs.
static void enter_landlock(void) {
  const unsigned long long handled = 1ULL << 6;  // LANDLOCK_ACCESS_FS_MAKE_CHAR
  const int rules = (int)syscall(kLandlockCreateRuleset, &handled, sizeof(handled), 0);
  check(rules, "rules of Landlock");
  check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
  check(syscall(kLandlockRestrictSelf, rules, 0), "a domain of Landlock");
  close(rules);
}

static void enter_filter(void) {
  struct sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_get_robust_list, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const struct sock_fprog program = {sizeof(rules) / sizeof(rules[0]), rules};
  check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
  check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), "a filter");
}

static void confine(int signal) {
  enter_landlock();
  (void)signal;
}

static void set_memory_policy(int mode) {
  const unsigned long nodes = 1;
  check(syscall(SYS_set_mempolicy, mode, &nodes, 8 * sizeof(nodes)), "a NUMA policy");
}

static void set_of_thread(long slack, int io_priority, unsigned long persona, int mode) {
  check(prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0), "timer slack");
  check(syscall(SYS_ioprio_set, kIoWhoProcess, 0, io_priority), "I/O priority");
  check(personality(persona), "personality");
  set_memory_policy(mode);
}

static void* second_thread(void* ready) {
  self = "second";
  set_of_thread(654321, kIoIdle, ADDR_NO_RANDOMIZE | STICKY_TIMEOUTS, MPOL_INTERLEAVE);
  check(prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0), "the time stamp counter");
  check(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0), "machine checks");
  (void)prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
  // Not every processor has these.
  (void)prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0);
  (void)prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, PR_SPEC_DISABLE, 0, 0);
  (void)prctl(PR_SET_SPECULATION_CTRL, kCacheFlush, PR_SPEC_ENABLE, 0, 0);
  (void)syscall(SYS_arch_prctl, kSetCpuid, 0);
  check(prctl(PR_SET_PDEATHSIG, SIGURG, 0, 0, 0), "the signal of a parent's death");
  check(setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 7), "nice");
  const struct sched_param none = {0};
  check(sched_setscheduler(0, SCHED_BATCH, &none), "the scheduler");
  static char stack[32768];
  const stack_t alternative = {.ss_sp = stack, .ss_size = sizeof(stack)};
  check(sigaltstack(&alternative, NULL), "a signal stack");
  pthread_barrier_wait(ready);
  sigset_t signals;
  sigfillset(&signals);
  sigdelset(&signals, kTell);
  sigdelset(&signals, kConfine);
  pthread_sigmask(SIG_SETMASK, &signals, NULL);
  for (;;) pause();
  return NULL;
}

static void set_up_sockets(void) {
  sockets[kConnections] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockets[kDatagrams] = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockets[kLocal] = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  check(setsockopt(sockets[kConnections], IPPROTO_TCP, TCP_CONGESTION, kCongestion,
                   sizeof(kCongestion) - 1),
        "the control of congestion");
  for (size_t i = 0; i < sizeof(kSocketOptions) / sizeof(kSocketOptions[0]); ++i) {
    const int* const value = &kSocketOptions[i].value;
    check(setsockopt(sockets[kSocketOptions[i].socket], kSocketOptions[i].level,
                     kSocketOptions[i].name, value, sizeof(*value)),
          "an option of a socket");
  }
}

static void set_of_process(void) {
  set_up_sockets();
  (void)syscall(SYS_arch_prctl, kRequestPermission, kTileData);  // not every processor has it
  check(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), "huge pages");
  check(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "the reaping of orphans");
  check(prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0), "the merging of pages");
  const int filter = open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC);
  check(filter, "the filter of core dumps");
  check(write(filter, "0x7\n", 4), "the filter of core dumps");
  close(filter);
  umask(027);
  struct rlimit limit;
  check(getrlimit(RLIMIT_NPROC, &limit), "a limit");
  limit.rlim_cur = 4242;
  check(setrlimit(RLIMIT_NPROC, &limit), "a limit");
  check(syscall(SYS_add_key, "user", "gcr-test-own", "x", 1, KEY_SPEC_PROCESS_KEYRING), "a key");
  check(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0), "barriers");
}

/// The tiles hold the sum nearly all the time: it is in no memory.
__attribute__((target("amx-tile,amx-int8"))) static void* multiply(void* nothing) {
  enum { kRows = 16, kRowBytes = 64, kSums = 20000 };
  static const struct {
    unsigned char palette, none[15];
    unsigned short row_bytes[16];
    unsigned char rows[16];
  } configuration = {1, {0}, {kRowBytes, kRowBytes, kRowBytes}, {kRows, kRows, kRows}};
  static unsigned char left[kRows * kRowBytes], right[kRows * kRowBytes];
  static unsigned sums[kRows * kRowBytes / 4];
  memset(left, 3, sizeof(left));
  memset(right, 5, sizeof(right));
  self = "second";
  for (;;) {
    _tile_loadconfig(&configuration);
    _tile_zero(0);
    _tile_loadd(1, left, kRowBytes);
    _tile_loadd(2, right, kRowBytes);
    for (int i = 0; i < kSums; ++i) _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums, kRowBytes);
    _tile_release();
    int wrong = 0;
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); ++i) {
      wrong |= sums[i] != (unsigned)kSums * kRowBytes * 3 * 5;
    }
    if (wrong) {
      ++wrong_products;
    } else {
      ++right_products;
    }
  }
  return nothing;
}

static void set_sandbox(const char* sandbox) {
  if (strcmp(sandbox, "tiles") == 0) {
    check(syscall(SYS_arch_prctl, kRequestPermission, kTileData), "the permission for tiles");
    pthread_t thread;
    check(-pthread_create(&thread, NULL, multiply, NULL), "a thread");
  }
  if (strcmp(sandbox, "landlock") == 0) enter_landlock();
  if (strcmp(sandbox, "filter") == 0) enter_filter();
  if (strcmp(sandbox, "orphan") == 0) {
    check(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "the signal of a parent's death");
  }
  if (strcmp(sandbox, "seal") == 0) {
    sealed = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(syscall(kMseal, sealed, 4096, 0), "a seal");
  }
  if (strcmp(sandbox, "mappings") == 0) {
    const unsigned long nodes = 1;
    bound = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(syscall(SYS_mbind, bound, 4096, MPOL_PREFERRED, &nodes, 8 * sizeof(nodes), 0), "mbind");
  }
}

__attribute__((constructor)) static void begin(void) {
  const char* const path = getenv("GCR_STATES");
  if (path == NULL) return;
  unsetenv("GCR_STATES");  // none of its children is asked
  output = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  check(output, "the file");
  const struct sigaction telling = {.sa_handler = tell, .sa_flags = SA_RESTART};
  const struct sigaction confining = {.sa_handler = confine, .sa_flags = SA_RESTART};
  check(sigaction(kTell, &telling, NULL), "a handler");
  check(sigaction(kConfine, &confining, NULL), "a handler");
  const char* const sandbox = getenv("GCR_SANDBOX");
  if (sandbox == NULL || strcmp(sandbox, "all") != 0) {
    self = "first";
    if (sandbox != NULL) set_sandbox(sandbox);
    return;
  }
  set_of_process();
  static pthread_barrier_t ready;  // the other thread may read it after this has returned
  pthread_barrier_init(&ready, NULL, 2);
  pthread_t thread;
  check(-pthread_create(&thread, NULL, second_thread, &ready), "a thread");
  pthread_barrier_wait(&ready);
  self = "first";
  set_of_thread(123456, kIoBestEffort | 6, ADDR_NO_RANDOMIZE, MPOL_BIND);
  check(mlockall(MCL_FUTURE), "the locking of later memory");
  check(prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0), "MDWE");
}
