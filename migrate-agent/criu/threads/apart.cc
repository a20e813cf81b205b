#include "migrate-agent/criu/threads/apart.h"

#include <errno.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <optional>
#include <vector>

#include "src/base/raw_bytes.h"
#include "src/base/side_by_side.h"

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
  // Without a signal at its end: only this function waits for it.
  const pid_t pid =
      ::clone(run_work, stack.end(), CLONE_VM | CLONE_VFORK | CLONE_FILES, &work_apart);
  if (pid < 0) return Error::from_errno(errno, "cannot start a process for a tracer");
  while (::waitpid(pid, nullptr, __WALL) < 0 && errno == EINTR) {
  }
  if (work_apart.done) return *std::move(work_apart.done);
  return Error(Code::kInternal, "a tracer process has ended too early");
}

Status Meeting::meet(Status mine, const std::function<Status()>& once) {
  std::unique_lock lock(mutex_);
  if (all_ && !mine) all_ = std::move(mine);
  const std::size_t meeting = meetings_;
  if (++waiting_ + left_ == parties_) {
    open(once);
  } else {
    opened_.wait(lock, [&] { return meetings_ != meeting; });
  }
  return all_;
}

void Meeting::leave() {
  const std::lock_guard lock(mutex_);
  ++left_;
  if (waiting_ > 0 && waiting_ + left_ == parties_) open({});
}

/// With the mutex.
void Meeting::open(const std::function<Status()>& once) {
  if (left_ > 0 && all_) all_ = Error(Code::kInternal, "one of the tracers has ended");
  if (all_ && once) all_ = once();
  waiting_ = 0;
  ++meetings_;
  opened_.notify_all();
}

Status run_apart(std::size_t parties,
                 const std::function<Status(std::size_t number, Meeting& others)>& work) {
  Meeting meeting(parties);
  std::vector<std::size_t> numbers(parties);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  // Each from a thread of its own, which is blocked meanwhile: they have its thread-local storage.
  return side_by_side(numbers, [&](std::size_t number) {
    const Status done = run_apart([&] { return work(number, meeting); });
    meeting.leave();
    return done;
  });
}

}  // namespace gcr::criu
