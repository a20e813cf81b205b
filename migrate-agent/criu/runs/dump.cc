// create() starts CRIU, which probes the kernel and then waits at a FIFO in the place of the first
// file that it reads. run() lets it go on: CRIU stops the tasks and streams its images; images of
// memory are taken while they are written, all others are collected. When CRIU has ended, the agent
// corrects these (rights, connections, names), hands them over, and sends what CRIU left out.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
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
/// The first file that a dump reads: a cache of paths, of use to a file system without handles.
constexpr char kFirstDumpFile[] = "irmap-cache";
/// With nothing but its magic numbers, 0x55105940 and 0x57004059.
constexpr std::string_view kEmptyCache("\x40\x59\x10\x55\x59\x40\x00\x57", 8);

Result<std::vector<std::string>> dump_arguments(pid_t pid, const DumpOptions& options) {
  const std::vector<pid_t> pids = procfs::namespace_pids(std::to_string(pid));
  if (pids.empty()) {
    GCR_ASSIGN(const UniqueFd alive, procfs::open_pidfd(pid));  // or the reason why not
    return Error(Code::kUnavailable, "cannot read /proc/" + std::to_string(pid) + "/status");
  }
  auto arguments = common_arguments("dump", kDumpLog, options.plugin != nullptr);
  arguments.insert(arguments.end(),
                   {"--tree", std::to_string(pids.back()), "--leave-stopped", "--stream"});
  if (!options.group.empty()) {
    // The path means something else in a container.
    const std::string inside =
        fmt::format("/proc/self/fd/{}/{}", launch::kGroupFd, options.group.filename().string());
    arguments.insert(arguments.end(),
                     {"--freeze-cgroup", options.in_container ? inside : options.group.string()});
  }
  // A connection that waits to be accepted has its other end outside.
  if (options.outside_tcp == process::OutsideTcp::kClose) {
    arguments.emplace_back("--skip-in-flight");
  }
  return arguments;
}

Status wait_for_success(Session& session, const fs::path& directory) {
  const Result<int> status = session.wait();
  if (!status) return explain(status.error(), directory, kDumpLog);
  if (*status != 0) return refusal(*status, directory, kDumpLog);
  return {};
}

Error cannot(const char* what, pid_t pid, const Error& error) {
  return error.while_doing(std::string("cannot ") + what + " process " + std::to_string(pid));
}

}  // namespace

struct PreparedDump::Impl {
  Impl(procfs::Process process, fs::path directory, DumpOptions options, HoldingPoint hold,
       Streamer streamer, LeftOutMemory left_out)
      : process(std::move(process)),
        directory(std::move(directory)),
        options(std::move(options)),
        hold(std::move(hold)),
        streamer(std::move(streamer)),
        left_out(std::move(left_out)) {}
  ~Impl() {
    if (session && !started) session->kill();
  }

  Status start(const Command& command, const std::vector<std::string>& arguments);
  Status run(const TakeImage& take, SeparateMemory* memory);
  Status wait_until_stopped();
  Status wait_until_dumped();
  Status settle(ImageContents& contents);
  Status send_separate(const TakeImage& take, SeparateMemory& memory);

  const procfs::Process process;
  const pid_t pid = process.pid();
  const fs::path directory;
  const DumpOptions options;
  HoldingPoint hold;
  Streamer streamer;
  std::optional<LeftOutMemory> left_out;
  std::optional<Session> session;
  std::vector<process::ThreadRights> threads;
  std::map<std::string, std::string> renamed;  ///< names that files have in the images
  bool started = false;
};

Status PreparedDump::Impl::start(const Command& command,
                                 const std::vector<std::string>& arguments) {
  const UniqueFd memory = left_out->take_criu_end();
  UniqueFd group;
  if (options.in_container && !options.group.empty()) {
    const fs::path above = options.group.parent_path();
    group.reset(::open(above.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!group) return Error::from_errno(errno, "cannot open " + above.string());
  }
  const InContainer inside{.group_fd = group.get()};
  auto launched =
      Session::in_namespaces_of(command, arguments, pid, directory,
                                {.groups = options.groups,
                                 .plugin = options.plugin.get(),
                                 .memory_fd = memory.get(),
                                 .container = options.in_container ? &inside : nullptr});
  if (!launched) return explain(launched.error(), directory, kDumpLog);
  session.emplace(std::move(*launched));
  GCR_ASSIGN(const bool reached, hold.wait_until_reached(*session));
  if (reached) return {};
  GCR_TRY(wait_for_success(*session, directory));
  return Error(Code::kInternal, "CRIU has done without " + std::string(kFirstDumpFile));
}

Status PreparedDump::Impl::run(const TakeImage& take, SeparateMemory* memory) {
  GCR_TRY(session->check_namespace());
  GCR_TRY(lock_connections(procfs::tree(pid)));
  GCR_TRY(session->end_when_still(options.patience));
  if (memory != nullptr) left_out->ask(*memory);
  started = true;
  if (const Status passed = hold.pass(std::string(kEmptyCache)); !passed) {
    session->kill();
    return passed.error();
  }
  auto collected = streamer.collect(take);
  // Also if the images were lost: CRIU may have finished nevertheless, and run() can only resume
  // tasks that have stopped.
  const Status dumped = wait_until_dumped();
  if (!collected) return collected.error();
  GCR_TRY(dumped);
  GCR_TRY(settle(*collected));
  for (const auto& [name, content] : *collected) {
    GCR_ASSIGN(UniqueFd file, images::in_memory(name, content));
    GCR_TRY(take(name, std::move(file)));
  }
  return memory == nullptr ? Status() : send_separate(take, *memory);
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
  GCR_TRY(wait_for_success(*session, directory));
  GCR_TRY(wait_until_stopped());
  return session->check_namespace();  // else CRIU's view was not genuine
}

/// The last steps with the images of threads, connections and files.
Status PreparedDump::Impl::settle(ImageContents& contents) {
  const images::ReadImage read = [&](const std::string& name) -> Result<std::string> {
    return contents[name];
  };
  const images::WriteImage write = [&](const std::string& name,
                                       const std::string& content) -> Status {
    contents[name] = content;
    return {};
  };
  GCR_ASSIGN(threads, settle_threads(pid, read, write));
  for (const process::ThreadRights& thread : threads) {
    if (options.may_move) GCR_TRY(options.may_move(thread.rights));
  }
  GCR_TRY(settle_connections(read, write, options.outside_tcp));
  GCR_TRY(wait_until_stopped());
  if (renamed.empty()) return {};
  std::string& files = contents[images::kFilesImage];
  GCR_ASSIGN(files, images::rename_files(files, renamed));
  return {};
}

Status PreparedDump::Impl::send_separate(const TakeImage& take, SeparateMemory& memory) {
  GCR_ASSIGN(auto tasks, left_out->finish());
  // Of those of which nothing was left out, there may be memory from before that is not true now.
  for (const auto& [inner, task] : procfs::stopped_tree_in_namespace(pid)) tasks[inner].pid = task;
  for (const auto& [inner, task] : tasks) {
    const std::string map = images::memory_map(inner);
    GCR_ASSIGN(UniqueFd file, images::in_memory(map, images::image_of_ranges(task.ranges)));
    GCR_TRY(take(map, std::move(file)));
    if (task.ranges.empty()) continue;
    GCR_TRY(memory.take(images::memory_images(inner), task.pid, task.ranges));
  }
  return {};
}

PreparedDump::PreparedDump(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PreparedDump::PreparedDump(PreparedDump&&) noexcept = default;
PreparedDump& PreparedDump::operator=(PreparedDump&&) noexcept = default;
PreparedDump::~PreparedDump() = default;

Result<PreparedDump> PreparedDump::create(const Command& command, pid_t pid,
                                          const fs::path& directory, const DumpOptions& options) {
  auto impl = [&]() -> Result<std::unique_ptr<Impl>> {
    GCR_ASSIGN(auto process, procfs::Process::open(pid));
    GCR_ASSIGN(const auto arguments, dump_arguments(pid, options));
    GCR_ASSIGN(HoldingPoint hold, HoldingPoint::create(directory, kFirstDumpFile));
    GCR_ASSIGN(Streamer streamer, Streamer::listen(directory));
    GCR_ASSIGN(LeftOutMemory left_out, LeftOutMemory::serve(pid));
    auto made = std::make_unique<Impl>(std::move(process), directory, options, std::move(hold),
                                       std::move(streamer), std::move(left_out));
    GCR_TRY(made->start(command, arguments));
    return made;
  }();
  if (!impl) return cannot("prepare a dump of", pid, impl.error());
  return PreparedDump(std::move(*impl));
}

Result<std::vector<process::ThreadRights>> PreparedDump::run(
    const TakeImage& take, const std::map<std::string, std::string>& renamed,
    SeparateMemory* memory) {
  impl_->renamed = renamed;
  const pid_t pid = impl_->pid;
  const bool was_stopped = procfs::state(std::to_string(pid)) == 'T';
  const Status dumped = impl_->run(take, memory);
  impl_->left_out.reset();  // a CRIU that failed to end asks `memory` nothing any more
  if (!dumped) {
    // CRIU resumes the tasks when it fails; do it here if it could not, for example if the images
    // were lost. Whether they are stopped is not visible while their group is frozen.
    (void)end_repair(procfs::stopped_tree(pid), Repaired::kAll);
    if (!was_stopped) (void)resume_stopped(impl_->process);
    return cannot("dump", pid, dumped.error());
  }
  return std::move(impl_->threads);
}

}  // namespace gcr::criu
