#include "migrate-agent/criu/criu.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include "migrate-agent/criu/criu_rpc.pb.h"
#include "migrate-agent/criu/images.h"
#include "migrate-agent/criu/interrupted_calls.h"
#include "migrate-agent/criu/options.h"
#include "migrate-agent/criu/session.h"
#include "migrate-agent/process/procfs.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kDumpLog[] = "dump.log";
constexpr char kCheckLog[] = "check.log";

/// A directory that lives as long as this object.
class TemporaryDirectory {
 public:
  static Result<TemporaryDirectory> make() {
    std::string path = (fs::temp_directory_path() / "gcr-criu-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      return Error::from_errno(errno, "cannot make a directory like " + path);
    }
    return TemporaryDirectory(path);
  }
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  explicit TemporaryDirectory(fs::path path) : path_(std::move(path)) {}
  fs::path path_;
};

Result<wire::Response> ask(const Command& command, const wire::Request& request,
                           const fs::path& images) {
  GCR_ASSIGN(Session session, Session::here(command, images));
  auto response = session.call(request);
  if (!response) return explain(response.error(), images, request.opts().log_file());
  return response;
}

Status dump_from(const Command& command, pid_t pid, const fs::path& images) {
  const std::vector<pid_t> pids = procfs::namespace_pids(std::to_string(pid));
  if (pids.empty()) return Error(Code::kNotFound, "no such process");
  GCR_ASSIGN(Session session, Session::beside(command, pid, images));
  wire::Request request;
  request.set_type(wire::DUMP);
  *request.mutable_opts() = common_options(kDumpLog);
  request.mutable_opts()->set_pid(pids.back());
  auto response = session.call(request);
  if (!response) return explain(response.error(), images, kDumpLog);
  if (!response->success()) return refusal(*response, images, kDumpLog);
  GCR_TRY(procfs::wait_until_stopped(pid));
  return restart_interrupted_calls(pid, images);
}

}  // namespace

Result<std::uint32_t> version(const Command& command) {
  GCR_ASSIGN(const TemporaryDirectory directory, TemporaryDirectory::make());
  wire::Request request;
  request.set_type(wire::VERSION);
  auto response = ask(command, request, directory.path());
  if (!response) return response.error().while_doing("cannot ask CRIU for its version");
  const wire::VersionResponse& version = response->version();
  return version.major_number() * 10000 + version.minor_number() * 100 + version.sublevel();
}

Status check(const Command& command) {
  GCR_ASSIGN(const TemporaryDirectory directory, TemporaryDirectory::make());
  wire::Request request;
  request.set_type(wire::CHECK);
  *request.mutable_opts() = common_options(kCheckLog);
  auto response = ask(command, request, directory.path());
  if (!response) return response.error().while_doing("CRIU cannot work here");
  if (!response->success()) {
    return refusal(*response, directory.path(), kCheckLog).while_doing("CRIU cannot work here");
  }
  return {};
}

Result<DumpReport> dump(const Command& command, pid_t pid, const fs::path& images) {
  const auto start = Clock::now();
  const bool was_stopped = procfs::state(std::to_string(pid)) == 'T';
  const Status status = dump_from(command, pid, images);
  if (!status) {
    // CRIU lets the tasks run when it fails; make sure of it where it could not.
    if (!was_stopped && procfs::state(std::to_string(pid)) == 'T') (void)resume_stopped(pid);
    return status.error().while_doing("cannot dump process " + std::to_string(pid));
  }
  return DumpReport{Clock::now() - start, images::total_bytes(images)};
}

Status resume_stopped(pid_t pid) {
  if (procfs::state(std::to_string(pid)) == '\0') {
    return Error(Code::kNotFound, "cannot resume process " + std::to_string(pid) + ": it is gone");
  }
  for (const pid_t task : procfs::tree(pid)) {
    if (::kill(task, SIGCONT) != 0 && task == pid) {
      return Error::from_errno(errno, "cannot resume process " + std::to_string(pid));
    }
  }
  return {};
}

Status kill_stopped(pid_t pid) {
  std::vector<UniqueFd> tasks;
  for (const pid_t task : procfs::tree(pid)) {
    auto pidfd = procfs::open_pidfd(task);
    if (pidfd) tasks.push_back(std::move(*pidfd));
  }
  for (const UniqueFd& task : tasks) {
    if (!procfs::send_signal(task.get(), SIGKILL) && errno != ESRCH) {
      return Error::from_errno(errno, "cannot kill process " + std::to_string(pid));
    }
  }
  for (const UniqueFd& task : tasks) {
    pollfd ended{task.get(), POLLIN, 0};
    while (::poll(&ended, 1, -1) < 0 && errno == EINTR) {
    }
  }
  return {};
}

}  // namespace gcr::criu
