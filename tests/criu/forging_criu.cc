// CRIU with an accomplice in the process: it dumps, then the images are changed.
//
// Usage: forging_criu FIELD CRIU ARGUMENT…
//        forging_criu FIELD DIRECTORY        changes the images in this directory
#include <sys/wait.h>
#include <unistd.h>

#include "migrate-agent/criu/launch/launch.h"
#include "tests/criu/forge.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  if (argc == 3) {
    gcr::criu::test::forge_credentials(argv[2], argv[1]);
    return 0;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::execv(argv[2], argv + 2);
    ::_exit(127);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
  if (WEXITSTATUS(status) != 0) return WEXITSTATUS(status);
  gcr::criu::test::forge_credentials(
      "/proc/self/fd/" + std::to_string(gcr::criu::launch::kImagesFd), argv[1]);
  return 0;
}
