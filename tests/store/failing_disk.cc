#include "tests/store/failing_disk.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <future>
#include <thread>
#include <vector>

namespace gcr::store::test {
namespace {

constexpr std::array kCalls = {SYS_pwrite64,  SYS_fsync,     SYS_ftruncate,
                               SYS_renameat2, SYS_unlinkat,  SYS_mkdirat,
                               SYS_openat2,   SYS_fallocate, SYS_linkat};

/// Calls of this thread, and of threads that it starts, wait for an answer from now on.
int listen() {
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long call : kCalls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter));
}

bool uses_space(int call) {
  return call == SYS_pwrite64 || call == SYS_fsync || call == SYS_mkdirat || call == SYS_ftruncate;
}

/// Returns the answer to a call: an errno, or 0 to let it pass.
int answer(int call, int number, int at, Fault fault) {
  if (fault == Fault::kKill && number == at) ::kill(::getpid(), SIGKILL);
  const bool is_hit = number == at || (number > at && uses_space(call));
  if (fault == Fault::kNone || fault == Fault::kKill || !is_hit) return 0;
  return fault == Fault::kFullDisk ? ENOSPC : EIO;
}

[[noreturn]] void serve(int listener, int at, Fault fault, std::atomic<int>& calls) {
  for (;;) {
    seccomp_notif call{};
    if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
    const int error = answer(call.data.nr, calls++, at, fault);
    seccomp_notif_resp response{.id = call.id, .val = 0, .error = -error, .flags = 0};
    if (error == 0) response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
  }
}

}  // namespace

Ended run_with_fault(int at, Fault fault, const std::function<bool()>& work) {
  void* const shared = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const calls = new (shared) std::atomic<int>(0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::promise<int> listener;
    std::thread([given = listener.get_future(), at, fault, calls]() mutable {
      serve(given.get(), at, fault, *calls);
    }).detach();
    const int filter = listen();
    if (filter < 0) ::_exit(3);
    listener.set_value(filter);
    bool succeeded = false;
    try {
      succeeded = work();
    } catch (const std::exception& error) {  // must not continue as a second test
      std::fprintf(stderr, "the child failed: %s\n", error.what());
    }
    ::_exit(succeeded ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << "no filter";
  const Ended ended{.killed = WIFSIGNALED(status),
                    .succeeded = WIFEXITED(status) && WEXITSTATUS(status) == 0,
                    .calls = calls->load()};
  ::munmap(shared, sizeof(std::atomic<int>));
  return ended;
}

}  // namespace gcr::store::test
