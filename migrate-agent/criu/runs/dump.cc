#include <unistd.h>

#include <optional>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/launch/holding_point.h"
#include "migrate-agent/criu/launch/session.h"
#include "migrate-agent/criu/memory/left_out_memory.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/criu/runs/options.h"
#include "migrate-agent/criu/runs/streamer.h"
#include "migrate-agent/criu/sockets/connections.h"
#include "migrate-agent/criu/sockets/tcp_sockets.h"
#include "migrate-agent/criu/threads/dumped_threads.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;

constexpr char kDumpLog[] = "dump.log";
constexpr char kPreDumpLog[] = "pre-dump.log";
/// The first file that a dump reads: a cache of paths, of use to a file system without handles.
constexpr char kFirstDumpFile[] = "irmap-cache";

/// The arguments for what is dumped, and from which parent.
Result<std::vector<std::string>> dump_arguments(const std::string& action, const char* log,
                                                pid_t pid, const fs::path& directory,
                                                const fs::path& parent, bool with_plugin) {
  const std::vector<pid_t> pids = procfs::namespace_pids(std::to_string(pid));
  if (pids.empty()) {
    GCR_ASSIGN(const UniqueFd alive, procfs::open_pidfd(pid));  // or the reason why not
    return Error(Code::kUnavailable, "cannot read /proc/" + std::to_string(pid) + "/status");
  }
  std::vector<std::string> arguments = common_arguments(action, log, with_plugin);
  arguments.insert(arguments.end(), {"--tree", std::to_string(pids.back())});
  if (!parent.empty()) {
    const fs::path there = fs::absolute(parent).lexically_normal();
    const fs::path link = there.lexically_relative(fs::absolute(directory).lexically_normal());
    arguments.insert(arguments.end(), {"--track-mem", "--prev-images-dir", link.string()});
  }
  return arguments;
}

Status wait_for_success(Session& session, const fs::path& directory, const char* log) {
  const Result<int> status = session.wait();
  if (!status) return explain(status.error(), directory, log);
  if (*status != 0) return refusal(*status, directory, log);
  return {};
}

Error cannot(const char* what, pid_t pid, const Error& error) {
  return error.while_doing(std::string("cannot ") + what + " process " + std::to_string(pid));
}

}  // namespace

struct PreparedDump::Impl {
  Impl(procfs::Process process, fs::path directory, DumpOptions options, HoldingPoint hold)
      : process(std::move(process)),
        directory(std::move(directory)),
        options(std::move(options)),
        hold(std::move(hold)) {}
  ~Impl() {
    if (session && !started) session->kill();
  }

  static Result<std::unique_ptr<Impl>> prepare(const Command& command, pid_t pid,
                                               const fs::path& directory, const fs::path& parent,
                                               const DumpOptions& options, bool streaming);
  Status start(const Command& command, const std::vector<std::string>& arguments);
  Status run(const TakeImage& take, const TakeMemory& take_memory);
  Status wait_until_stopped();
  Status wait_until_dumped();
  Status settle(const ReadImage& read, const WriteImage& write);
  Status run_streaming(const TakeImage& take, const TakeMemory& take_memory);
  Status run_to_directory();

  const procfs::Process process;
  const pid_t pid = process.pid();
  const fs::path directory;
  const DumpOptions options;
  HoldingPoint hold;
  std::optional<Streamer> streamer;
  std::optional<LeftOutMemory> left_out;
  std::optional<Session> session;
  std::vector<process::ThreadRights> threads;
  std::map<std::string, std::string> renamed;  ///< names that files have in the images
  bool started = false;
};

Result<std::unique_ptr<PreparedDump::Impl>> PreparedDump::Impl::prepare(
    const Command& command, pid_t pid, const fs::path& directory, const fs::path& parent,
    const DumpOptions& options, bool streaming) {
  auto made = [&]() -> Result<std::unique_ptr<Impl>> {
    GCR_ASSIGN(auto process, procfs::Process::open(pid));
    GCR_ASSIGN(auto arguments,
               dump_arguments("dump", kDumpLog, pid, directory, parent, options.plugin != nullptr));
    arguments.emplace_back("--leave-stopped");
    if (!options.group.empty()) {
      arguments.insert(arguments.end(), {"--freeze-cgroup", options.group.string()});
    }
    // A connection that waits to be accepted has its other end outside.
    if (options.outside_tcp == process::OutsideTcp::kClose) {
      arguments.emplace_back("--skip-in-flight");
    }
    GCR_ASSIGN(HoldingPoint hold, HoldingPoint::create(directory, kFirstDumpFile));
    auto impl = std::make_unique<Impl>(std::move(process), directory, options, std::move(hold));
    if (streaming) {
      arguments.emplace_back("--stream");
      GCR_ASSIGN(impl->streamer, Streamer::listen(directory));
      if (options.leave_out) {
        GCR_ASSIGN(auto left_out, LeftOutMemory::serve(pid, options.leave_out));
        impl->left_out.emplace(std::move(left_out));
      }
    }
    GCR_TRY(impl->start(command, arguments));
    return impl;
  }();
  if (!made) return cannot("prepare a dump of", pid, made.error());
  return made;
}

Status PreparedDump::Impl::start(const Command& command,
                                 const std::vector<std::string>& arguments) {
  const UniqueFd memory = left_out ? left_out->take_criu_end() : UniqueFd();
  auto beside = Session::beside(
      command, arguments, pid, directory,
      {.groups = options.groups, .plugin = options.plugin.get(), .memory_fd = memory.get()});
  if (!beside) return explain(beside.error(), directory, kDumpLog);
  session.emplace(std::move(*beside));
  GCR_ASSIGN(const bool reached, hold.wait_until_reached(*session));
  if (reached) return {};
  GCR_TRY(wait_for_success(*session, directory, kDumpLog));
  return Error(Code::kInternal, "CRIU has done without " + std::string(kFirstDumpFile));
}

Status PreparedDump::Impl::run(const TakeImage& take, const TakeMemory& take_memory) {
  GCR_TRY(session->check_namespace());
  GCR_TRY(lock_connections(procfs::tree(pid)));
  GCR_TRY(session->end_when_still(options.patience));
  started = true;
  if (const Status passed = hold.pass(images::empty_irmap_cache()); !passed) {
    session->kill();
    return passed.error();
  }
  return streamer ? run_streaming(take, take_memory) : run_to_directory();
}

/// What is frozen need not be stopped.
Status PreparedDump::Impl::wait_until_stopped() {
  if (!options.group.empty()) return {};
  for (const pid_t task : procfs::stopped_tree(pid)) {
    if (!procfs::has_ended(task)) GCR_TRY(procfs::wait_until_stopped(task));
  }
  return {};
}

/// When CRIU ends, the process is still being stopped, or frozen.
Status PreparedDump::Impl::wait_until_dumped() {
  GCR_TRY(wait_for_success(*session, directory, kDumpLog));
  GCR_TRY(wait_until_stopped());
  return session->check_namespace();  // else CRIU's view was not genuine
}

/// The last steps with the images of threads, connections and files.
Status PreparedDump::Impl::settle(const ReadImage& read, const WriteImage& write) {
  GCR_ASSIGN(threads, settle_threads(pid, read, write));
  for (const process::ThreadRights& thread : threads) {
    if (options.may_move) GCR_TRY(options.may_move(thread.rights));
  }
  GCR_TRY(settle_connections(read, write, options.outside_tcp));
  GCR_TRY(wait_until_stopped());
  if (renamed.empty()) return {};
  GCR_ASSIGN(const std::string files, read(images::kFilesImage));
  GCR_ASSIGN(const std::string with_names, images::rename_files(files, renamed));
  return write(images::kFilesImage, with_names);
}

Status PreparedDump::Impl::run_streaming(const TakeImage& take, const TakeMemory& take_memory) {
  auto collected = streamer->collect(take);
  // Also if the images were lost: CRIU may have finished nevertheless, and run() can only resume
  // tasks that have stopped.
  const Status dumped = wait_until_dumped();
  if (!collected) return collected.error();
  GCR_TRY(dumped);
  GCR_TRY(settle([&](const std::string& name) -> Result<std::string> { return (*collected)[name]; },
                 [&](const std::string& name, const std::string& content) -> Status {
                   (*collected)[name] = content;
                   return {};
                 }));
  for (const auto& [name, content] : *collected) {
    GCR_ASSIGN(UniqueFd file, images::in_memory(name, content));
    GCR_TRY(take(name, std::move(file)));
  }
  if (!left_out) return {};
  GCR_ASSIGN(auto tasks, left_out->finish());
  // Of those of which nothing was left out, there may be memory from before that is not true now.
  for (const auto& [inner, task] : procfs::stopped_tree_in_namespace(pid)) tasks[inner].pid = task;
  for (const auto& [inner, task] : tasks) {
    const std::string map = images::memory_map(inner);
    GCR_ASSIGN(UniqueFd file, images::in_memory(map, images::image_of_ranges(task.ranges)));
    GCR_TRY(take(map, std::move(file)));
    if (task.ranges.empty()) continue;
    GCR_TRY(take_memory(images::memory_images(inner), task.pid, task.ranges));
  }
  return {};
}

Status PreparedDump::Impl::run_to_directory() {
  GCR_TRY(wait_until_dumped());
  return settle([this](const std::string& name) { return images::read_file(directory / name); },
                [this](const std::string& name, const std::string& content) {
                  return images::write_file(directory / name, content);
                });
}

PreparedDump::PreparedDump(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PreparedDump::PreparedDump(PreparedDump&&) noexcept = default;
PreparedDump& PreparedDump::operator=(PreparedDump&&) noexcept = default;
PreparedDump::~PreparedDump() = default;

Result<PreparedDump> PreparedDump::streaming(const Command& command, pid_t pid,
                                             const fs::path& directory,
                                             const DumpOptions& options) {
  GCR_ASSIGN(auto impl, Impl::prepare(command, pid, directory, {}, options, true));
  return PreparedDump(std::move(impl));
}

Result<PreparedDump> PreparedDump::to_directory(const Command& command, pid_t pid,
                                                const fs::path& directory, const fs::path& parent,
                                                const DumpOptions& options) {
  GCR_ASSIGN(auto impl, Impl::prepare(command, pid, directory, parent, options, false));
  return PreparedDump(std::move(impl));
}

Result<std::vector<process::ThreadRights>> PreparedDump::run(
    const TakeImage& take, const std::map<std::string, std::string>& renamed,
    const TakeMemory& take_memory) {
  impl_->renamed = renamed;
  const pid_t pid = impl_->pid;
  const bool was_stopped = procfs::state(std::to_string(pid)) == 'T';
  const Status dumped = impl_->run(take, take_memory);
  if (!dumped) {
    // CRIU resumes the tasks when it fails; do it here if it could not, for example if the images
    // were lost. Whether they are stopped is not visible while their group is frozen.
    (void)end_repair(procfs::stopped_tree(pid), Repaired::kAll);
    if (!was_stopped) (void)resume_stopped(impl_->process);
    return cannot("dump", pid, dumped.error());
  }
  return std::move(impl_->threads);
}

Status pre_dump(const Command& command, pid_t pid, const fs::path& directory,
                const fs::path& parent) {
  const Status status = [&]() -> Status {
    GCR_ASSIGN(const auto arguments,
               dump_arguments("pre-dump", kPreDumpLog, pid, directory, parent, false));
    GCR_ASSIGN(Session session, Session::beside(command, arguments, pid, directory));
    GCR_TRY(session.end_when_still(DumpOptions().patience));
    GCR_TRY(wait_for_success(session, directory, kPreDumpLog));
    return session.check_namespace();
  }();
  if (!status) return cannot("pre-dump", pid, status.error());
  return {};
}

}  // namespace gcr::criu
