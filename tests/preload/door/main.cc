// Every run has its own software GPUs, in a mount namespace with its own /dev/shm, which is gone
// with the last process in it, and sees only its own processes: a process listing opens every door,
// and a concurrently examining agent would find another one there.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

/// In a child, in new namespaces. The exit status of `run`, or 1.
int run_apart(int (*run)()) {
  if (::unshare(CLONE_NEWNS | CLONE_NEWPID) != 0) return 1;
  const pid_t init = ::fork();
  if (init == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("proc", "/proc", "proc", 0, nullptr) != 0 ||
        ::mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) != 0) {
      std::perror("cannot make a mount namespace");
      ::_exit(1);
    }
    // Signals that it sends to itself do nothing to the first process of a namespace.
    const pid_t tests = ::fork();
    if (tests == 0) std::exit(run());
    int status = 0;
    for (pid_t ended = 0; ended != tests;) ended = ::wait(&status);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  int status = 0;
  return ::waitpid(init, &status, 0) == init && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // A real GPU needs no separation, and CTest only asks for names.
  if (std::getenv("GCR_TEST_REAL_GPU") != nullptr || testing::GTEST_FLAG(list_tests)) {
    return RUN_ALL_TESTS();
  }
  // CUDA's and HIP's.
  ::setenv("SOFTGPU_DEVICES",
           "GPU-0b3e52a1-0000-4000-8000-000000000001:4G,"
           "GPU-0b3e52a1-0000-4000-8000-000000000002:1G,"
           "GPU-0b3e52a100000001:4G,GPU-0b3e52a100000002:1G",
           1);
  const int status = run_apart([] { return RUN_ALL_TESTS(); });
  if (status != 0) std::fprintf(stderr, "the tests failed, or could not begin: they need root\n");
  return status;
}
