/* A libcuda.so.1 without a GPU that also uses CUDA when it is loaded, as a framework does. It is
   linked with no C library, so it runs with that of any program. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int cuInit(unsigned int flags) {
  (void)flags;
  return 0;
}

static void check(int fine, const char* failure) {
  if (fine) return;
  (void)!write(STDERR_FILENO, failure, strlen(failure));
  _exit(1);
}

/* A forked child, in which the library has released what it must not keep. */
static void check_fork(int (*init)(unsigned int)) {
  const pid_t child = fork();
  if (child == 0) _exit(init(0));
  int status = -1;
  check(waitpid(child, &status, 0) == child && status == 0, "a forked child cannot use CUDA\n");
}

__attribute__((constructor)) static void use_cuda(void) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  check(driver != NULL, "dlopen fails\n");
  int (*init)(unsigned int) = NULL;
  *(void**)&init = dlsym(driver, "cuInit");
  check(init != NULL, "dlsym does not find cuInit\n");
  check(init(0) == 0, "cuInit fails\n");
  check_fork(init);
}
