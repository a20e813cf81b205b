/* Makes system calls by libc's syscall(2), with 0 to 6 arguments, and says what they give. Its
   output is the same with the library as without it, but for the first line. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char* name, long result) {
  printf("%s: %ld errno %d\n", name, result, errno);
  errno = 4711;
}

static void make_ring(void) {
  struct io_uring_params parameters;
  memset(&parameters, 0, sizeof(parameters));
  const long ring = syscall(SYS_io_uring_setup, 4, &parameters);
  if (ring >= 0) {
    printf("ring: made, %u entries\n", parameters.sq_entries);
    close((int)ring);
  } else {
    say("ring", ring);
  }
}

static void call_with_every_number_of_arguments(void) {
  char text[8] = "1234567";
  struct iovec part = {text, 3};
  const struct timespec no_time = {0, 0};
  const int file = memfd_create("subject", MFD_CLOEXEC);
  errno = 4711;
  say("no argument", syscall(SYS_getpid) == getpid());
  say("one", syscall(SYS_fsync, file));
  say("two", syscall(SYS_ftruncate, file, 3 * 4096L));
  say("three", syscall(SYS_write, file, text, 7));
  say("four", syscall(SYS_pwrite64, file, text, 5, 2 * 4096L));
  say("five", syscall(SYS_pwritev, file, &part, 1, 4096L, 0L));
  char* page = (char*)syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_SHARED, file, 2 * 4096L);
  printf("six: %.5s\n", page);
  say("six with a mask", syscall(SYS_pselect6, 0, 0, 0, 0, &no_time, 0));
  say("a bad descriptor", syscall(SYS_close, -1));
  say("a bad address", syscall(SYS_write, file, (void*)1, 7));
  say("no such call", syscall(100000));
  say("the upper half of the number", syscall(SYS_getpid | 1L << 32) == getpid());
}

static void* fail_often(void* descriptor) {
  long wrong = 0;
  const int number = -1 - (int)(long)descriptor;
  for (int i = 0; i < 20000; ++i) {
    errno = 0;
    const int expected = i % 2 ? EBADF : EFAULT;
    const long result =
        i % 2 ? syscall(SYS_close, number) : syscall(SYS_pipe2, (void*)1, O_CLOEXEC);
    if (result != -1 || errno != expected) ++wrong;
  }
  return (void*)wrong;
}

static void call_in_threads(void) {
  pthread_t threads[4];
  for (long i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, fail_often, (void*)i);
  for (int i = 0; i < 4; ++i) {
    void* wrong = NULL;
    pthread_join(threads[i], &wrong);
    printf("thread: %ld wrong\n", (long)wrong);
  }
}

static void leave(void) { syscall(SYS_exit, 5); }

static void say_end_of(const char* name, long child) {
  int status = -1;
  const int found = waitpid((pid_t)child, &status, __WALL) == child;
  printf("%s: %d status %d\n", name, found, status);
}

/* A child that returns to the same place, and one that returns on a stack of its own. */
static void clone_children(void) {
  static char stack[65536] __attribute__((aligned(16)));
  void (**top)(void) = (void (**)(void))(stack + sizeof(stack) - 64);
  *top = leave;
  fflush(stdout);
  const long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) _exit(3);
  say_end_of("clone", child);
  say_end_of("clone with a stack", syscall(SYS_clone, CLONE_VM | SIGCHLD, top, 0, 0, 0));
}

int main(void) {
  errno = 4711;
  make_ring();
  make_ring();
  call_with_every_number_of_arguments();
  call_in_threads();
  clone_children();
  return 0;
}
