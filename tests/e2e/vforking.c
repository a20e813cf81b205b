// Preloaded into a program: a thread of its own executes one program after the other by vfork, and
// spends half of the time in it.
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kPauseMicroseconds = 5000 };

static void* execute_programs(void* unused) {
  static char name[] = "/bin/true";
  static char* const words[] = {name, NULL};
  static char* const environment[] = {NULL};
  for (;;) {
    const pid_t child = vfork();
    if (child == 0) {
      usleep(kPauseMicroseconds);
      execve(name, words, environment);
      _exit(1);
    }
    if (child > 0) waitpid(child, NULL, 0);
    usleep(kPauseMicroseconds);
  }
  return unused;
}

__attribute__((constructor)) static void begin(void) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals go to the program
  pthread_t thread;
  pthread_create(&thread, NULL, execute_programs, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}
