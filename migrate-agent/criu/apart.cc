#include "migrate-agent/criu/apart.h"

#include <errno.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <optional>

#include "src/base/raw_bytes.h"

namespace gcr::criu {
namespace {

constexpr std::size_t kWorkStackBytes = std::size_t{256} << 10;

struct WorkApart {
  const std::function<Status()>& work;
  std::optional<Status> done;
};

int run_work(void* argument) {
  WorkApart& work_apart = *static_cast<WorkApart*>(argument);
  work_apart.done.emplace(work_apart.work());
  ::_exit(0);
}

}  // namespace

Status run_apart(const std::function<Status()>& work) {
  WorkApart work_apart{work, std::nullopt};
  RawBytes stack(kWorkStackBytes);
  // Without a signal at its end: nobody else waits for it.
  const pid_t pid =
      ::clone(run_work, stack.end(), CLONE_VM | CLONE_VFORK | CLONE_FILES, &work_apart);
  if (pid < 0) return Error::from_errno(errno, "cannot start a process for a tracer");
  while (::waitpid(pid, nullptr, __WALL) < 0 && errno == EINTR) {
  }
  if (work_apart.done) return *std::move(work_apart.done);
  return Error(Code::kInternal, "a process that traced for this one has ended too early");
}

}  // namespace gcr::criu
