#include <unistd.h>

#include <set>

#include "migrate-agent/criu/criu.h"
#include "migrate-agent/criu/images.h"
#include "migrate-agent/criu/options.h"
#include "migrate-agent/criu/session.h"
#include "migrate-agent/process/procfs.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kRestoreLog[] = "restore.log";
constexpr pid_t kCriuNeedsPids =
    200;  ///< CRIU itself, and what it forks while it probes the kernel

/// A number after which CRIU's processes may be numbered without taking one that the tree needs.
pid_t free_range(const std::set<pid_t>& used) {
  pid_t first = 300;
  while (used.lower_bound(first) != used.end() &&
         *used.lower_bound(first) <= first + kCriuNeedsPids) {
    first = *used.lower_bound(first) + 1;
  }
  return first - 1;
}

}  // namespace

struct RestoredTree::Impl {
  Child init;
  UniqueFd control;  ///< to the init, which ends with everything in there when this closes
  pid_t pid = 0;
  std::chrono::nanoseconds duration{};

  ~Impl() { init.kill(); }
};

RestoredTree::RestoredTree(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RestoredTree::RestoredTree(RestoredTree&&) noexcept = default;
RestoredTree& RestoredTree::operator=(RestoredTree&&) noexcept = default;
RestoredTree::~RestoredTree() = default;

pid_t RestoredTree::pid() const { return impl_->pid; }
pid_t RestoredTree::init_pid() const { return impl_->init.pid(); }
std::chrono::nanoseconds RestoredTree::duration() const { return impl_->duration; }
void RestoredTree::kill() { impl_->init.kill(); }

void RestoredTree::release() {
  launch::send_control(impl_->control.get(), {launch::Event::kReleased, launch::Step::kNone, 0, 0},
                       -1);
  impl_->control.reset();
  impl_->init.forget();
}

Result<RestoredTree> restore(const Command& command, const fs::path& images,
                             const fs::path& reaper) {
  const auto start = Clock::now();
  auto impl = std::make_unique<RestoredTree::Impl>();
  const Status status = [&]() -> Status {
    GCR_ASSIGN(const std::set<pid_t> used, images::used_pids(images));
    GCR_ASSIGN(Session session,
               Session::in_new_namespaces(command, reaper, free_range(used), images));
    wire::Request request;
    request.set_type(wire::RESTORE);
    *request.mutable_opts() = common_options(kRestoreLog);
    auto response = session.call(request);
    if (!response) return explain(response.error(), images, kRestoreLog);
    if (!response->success()) return refusal(*response, images, kRestoreLog);
    GCR_TRY(session.wait_for_criu());
    impl->init = session.release_init();
    impl->control = session.release_control();
    GCR_ASSIGN(impl->pid, procfs::find_in_namespace(impl->init.pid(), response->restore().pid()));
    return procfs::wait_until_stopped(impl->pid);
  }();
  if (!status) {
    return status.error().while_doing("cannot restore from " + images.string());
  }
  impl->duration = Clock::now() - start;
  return RestoredTree(std::move(impl));
}

}  // namespace gcr::criu
