// create() starts CRIU in new namespaces, where it waits at a FIFO in the place of the first image;
// meanwhile memory of the tasks to be is put into it. run() checks the images, tells CRIU which
// mappings are in place, and lets it go on. When all tasks are in their last stop, CRIU waits once
// more: memory that was not taken over is copied into them. Then CRIU ends, and they stay stopped.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/launch/holding_point.h"
#include "migrate-agent/criu/launch/plugin.h"
#include "migrate-agent/criu/launch/session.h"
#include "migrate-agent/criu/memory/memory_filling.h"
#include "migrate-agent/criu/memory/prefilled_memory.h"
#include "migrate-agent/criu/memory/prefilled_shared_memory.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/criu/runs/options.h"
#include "migrate-agent/linux/procfs/container.h"
#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/socket_pair.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;

constexpr char kRestoreLog[] = "restore.log";
/// The first file that a restore reads.
constexpr char kFirstRestoreFile[] = "inventory.img";
constexpr pid_t kCriuNeedsPids =
    200;  ///< CRIU itself, and what it forks while it probes the kernel

/// How often a restore is polled; kMostStops polls that find it stopped take five seconds.
constexpr std::chrono::milliseconds kLookInterval{500};
constexpr int kMostStops = 10;

/// For how long CRIU may be at work, before the memory of tasks is filled and after it.
constexpr std::chrono::minutes kMostTime{10};

/// Whether CRIU's processes, with PIDs after `last`, take none that the tree needs.
bool is_free(pid_t last, const std::set<pid_t>& used) {
  const auto next = used.upper_bound(last);
  return next == used.end() || *next > last + kCriuNeedsPids;
}

/// The start of a free range of PIDs, with as many free PIDs behind it for later threads.
pid_t free_range(const std::set<pid_t>& used) {
  pid_t last = 300;
  while (!is_free(last, used) || !is_free(last + kCriuNeedsPids, used)) {
    last = *used.upper_bound(last);
  }
  return last;
}

/// The same for a container, whose other processes get their PIDs behind the range: it begins after
/// all that the job has now, and some that it may start meanwhile.
pid_t range_in_container(const std::set<pid_t>& used) {
  constexpr pid_t kMayCome = 1000;
  const pid_t end = std::atoi(procfs::read_text("/proc/sys/kernel/pid_max").c_str());
  const pid_t last = std::max(end / 2, used.empty() ? 0 : *used.rbegin() + kMayCome);
  return last < end - 2 * kCriuNeedsPids ? last : free_range(used);
}

/// Whose each memory is, from the names of its images.
struct Owners {
  std::map<std::uint32_t, pid_t> processes;
  std::map<std::uint32_t, std::uint32_t> shared;  ///< the number in the images
};

using Memories = std::map<std::uint32_t, std::vector<std::string>>;

/// For those of `memories` that are shared, or those that are not: one owner each, all different.
template <class Owner>
Status find_owners(const Memories& memories, bool shared,
                   Result<Owner> (*owner_in)(std::string_view),
                   std::map<std::uint32_t, Owner>& of) {
  std::set<Owner> owners;
  for (const auto& [memory, names] : memories) {
    if (names.empty()) continue;
    if (names.front().starts_with(gcr::images::kSharedMemory) != shared) continue;
    for (const std::string& name : names) {
      GCR_ASSIGN(const Owner owner, owner_in(name));
      if (of.try_emplace(memory, owner).first->second != owner) {
        return Error(Code::kDataLoss, "images of one memory name two owners");
      }
    }
    if (!owners.insert(of[memory]).second) {
      return Error(Code::kDataLoss, fmt::format("{} has two memories", of[memory]));
    }
  }
  return {};
}

Result<Owners> owners_of(const Memories& memories) {
  Owners owners;
  GCR_TRY(find_owners(memories, true, &images::number_of_shared_memory, owners.shared));
  GCR_TRY(find_owners(memories, false, &images::process_of_memory, owners.processes));
  return owners;
}

/// As kMemberRights has it.
Result<std::string> in_launch_format(const Rights& members) {
  constexpr int kOfFiles = 3;  // among the ids
  std::string all;
  for (const auto& [pid, rights] : members) {
    if (rights.uids_size() <= kOfFiles || rights.gids_size() <= kOfFiles) {
      return Error(Code::kProtocol, fmt::format("the ids of process {} are missing", pid));
    }
    const launch::MemberRights head{.pid = pid,
                                    .uid = rights.uids(kOfFiles),
                                    .gid = rights.gids(kOfFiles),
                                    .groups = static_cast<std::uint32_t>(rights.groups_size()),
                                    .effective = rights.effective()};
    all.append(reinterpret_cast<const char*>(&head), sizeof(head));
    all.append(reinterpret_cast<const char*>(rights.groups().data()),
               rights.groups_size() * sizeof(std::uint32_t));
  }
  return all;
}

/// The kernel ends a container with its init, which then waits until CRIU, if that is in the
/// container, has been reaped too.
void kill_container(const procfs::Process& init, Session* criu = nullptr) {
  const bool sent = init.send(SIGKILL).has_value();
  if (criu != nullptr) criu->kill();
  if (sent) (void)init.wait_until_ended();
}

}  // namespace

struct RestoredTree::Impl {
  Child init;        ///< the reaper; none in a container
  UniqueFd control;  ///< to the reaper, which ends with the whole namespace when this closes
  std::optional<procfs::Process> init_process;
  std::optional<procfs::Process> root;
  pid_t root_in_namespace = 0;
  bool released = false;

  ~Impl() {
    init.kill();
    if (init_process && !released) kill_container(*init_process);
  }
};

RestoredTree::RestoredTree(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RestoredTree::RestoredTree(RestoredTree&&) noexcept = default;
RestoredTree& RestoredTree::operator=(RestoredTree&&) noexcept = default;
RestoredTree::~RestoredTree() = default;

const procfs::Process& RestoredTree::root() const { return *impl_->root; }
pid_t RestoredTree::pid() const { return impl_->root->pid(); }
const procfs::Process& RestoredTree::init() const { return *impl_->init_process; }
bool RestoredTree::has_reaper() const { return static_cast<bool>(impl_->init); }
void RestoredTree::kill() {
  impl_->init.kill();
  kill_container(*impl_->init_process);
}

void RestoredTree::release() {
  impl_->released = true;
  if (!impl_->control) return;  // in a container
  launch::send_control(impl_->control.get(),
                       {launch::Event::kReleased, launch::Step::kNone, impl_->root_in_namespace});
  impl_->control.reset();
  impl_->init.forget();
}

struct PreparedRestore::Impl {
  Impl(Command command, fs::path directory, pid_t first_pid, RestoreOptions options,
       HoldingPoint hold)
      : command(std::move(command)),
        directory(std::move(directory)),
        first_pid(first_pid),
        options(std::move(options)),
        hold(std::move(hold)) {}

  ~Impl();

  Status start();
  Result<Session> start_session(const std::vector<std::string>& arguments, int hold_fd) const;
  static Result<std::unique_ptr<Impl>> make(const Command& command, const fs::path& directory,
                                            const std::set<pid_t>& used_pids,
                                            RestoreOptions options);
  Result<RestoredTree> run(const Rights& members, const Owners& owners);
  Result<RestoredTree> restore(const Rights& members, const Owners& owners);
  Status make_room_for_removed_files() const;
  Result<RestoredTree> take_over(pid_t root);
  void end();
  Status watch(pid_t root);
  Status fill(pid_t root);
  Status check_plugin() const;

  const Command command;
  const fs::path directory;
  const pid_t first_pid;  ///< CRIU's own PIDs come after it
  RestoreOptions options;
  HoldingPoint hold;
  HoldLine line;
  std::optional<Session> session;
  bool begun = false;  ///< there may be tasks, which nothing else owns
  std::unique_ptr<CriuMemory> in_criu;
  std::unique_ptr<PrefilledMemory> memory;
  std::unique_ptr<PrefilledSharedMemory> shared;
};

PreparedRestore::Impl::~Impl() { end(); }

/// Ends CRIU and all tasks that it has made.
void PreparedRestore::Impl::end() {
  line = {};
  if (session && options.container) {
    if (std::exchange(begun, false)) {
      kill_container(options.container->init, &*session);
    } else {
      session->kill();
    }
  }
  session.reset();
}

Result<Session> PreparedRestore::Impl::start_session(const std::vector<std::string>& arguments,
                                                     int hold_fd) const {
  LaunchOptions launched{.groups = options.groups,
                         .plugin = options.plugin.get(),
                         .hold_fd = hold_fd,
                         .status_fd = options.status_directory.get()};
  if (!options.container) {
    return Session::in_new_namespaces(command, arguments, first_pid, directory, launched);
  }
  InContainer inside{.first_pid = first_pid};
  std::vector<std::string> all = arguments;
  int fd = 0;
  for (const RestoreContainer::Stream& stream : options.container->streams) {
    inside.streams[fd] = stream.descriptor.get();
    all.insert(all.end(), {"--inherit-fd", fmt::format("fd[{}]:pipe:[{}]",
                                                       launch::kFirstStreamFd + fd, stream.pipe)});
    ++fd;
  }
  launched.container = &inside;
  return Session::in_namespaces_of(command, all, options.container->init.pid(), directory,
                                   launched);
}

Status PreparedRestore::Impl::start() {
  GCR_ASSIGN(SocketPair pair, SocketPair::create("CRIU"));
  line = HoldLine(std::move(pair.ours));
  std::vector<std::string> arguments =
      common_arguments("restore", kRestoreLog, options.plugin != nullptr);
  arguments.insert(arguments.end(), {"--leave-stopped", "--restore-detached"});
  auto started = start_session(arguments, pair.theirs.get());
  if (!started) return started.error();
  session.emplace(std::move(*started));
  GCR_ASSIGN(const bool reached, hold.wait_until_reached(*session));
  if (reached) return {};
  GCR_ASSIGN(const int status, session->wait());
  return refusal(status, directory, kRestoreLog);
}

/// Waits until CRIU has ended. A task that gets SIGCONT while CRIU traces it stops for its tracer
/// (ptrace(2), PTRACE_EVENT_STOP); CRIU does not notice, and would wait for it forever.
Status PreparedRestore::Impl::watch(pid_t root) {
  int stops = 0;
  const auto end = std::chrono::steady_clock::now() + kMostTime;
  for (;;) {
    Status may_go_on = options.go_on ? options.go_on() : Status();
    if (may_go_on && std::chrono::steady_clock::now() > end) {
      may_go_on = Error(Code::kTimeout, "CRIU has not restored the process within 10 minutes");
    }
    GCR_TRY(may_go_on);
    if (session->ends_within(kLookInterval, line.fd())) return {};
    const auto pid = procfs::find_in_namespace(session->init_pid(), root);
    stops = pid && procfs::state(std::to_string(*pid)) == 't' ? stops + 1 : 0;
    if (stops < kMostStops) continue;
    return Error(Code::kUnavailable, "the process got a signal while CRIU restored it");
  }
}

/// Fills the tasks, which are in their last stop.
Status PreparedRestore::Impl::fill(pid_t root) {
  GCR_TRY(line.wait_for_criu());
  // In a container they are below CRIU, which is not below the init.
  GCR_ASSIGN(const pid_t pid, procfs::find_in_namespace(session->init_pid(), root));
  const auto processes = procfs::stopped_tree_in_namespace(pid);
  GCR_TRY(shared->check_taken(processes));
  GCR_ASSIGN(const Elsewhere elsewhere, memory->find_taken(processes));
  GCR_TRY(fill_memory(directory, processes, elsewhere));
  GCR_TRY(memory->let_go());
  GCR_TRY(line.let_go_on());
  line = {};
  return {};
}

/// CRIU itself ignores what a plugin's last hook returns.
Status PreparedRestore::Impl::check_plugin() const {
  if (options.plugin == nullptr) return {};
  const fs::path log = directory / kRestoreLog;
  const std::string error = plugin_error(log, options.plugin->name());
  if (!error.empty()) return Error(Code::kUnsupported, "CRIU's plugin: " + error);
  return check_plugin_maps(plugin_maps(log, options.plugin->name()), options.planned);
}

/// A new tmpfs where removed files are made again. Reached without names, which belong to the
/// container.
Status PreparedRestore::Impl::make_room_for_removed_files() const {
  return procfs::Container(options.container->init).inside([]() -> Status {
    const fs::path path = launch::kRemovedInContainer;
    const UniqueFd above = procfs::open_directory(path.parent_path());
    const char* const name = path.filename().c_str();
    ::mkdirat(above.get(), name, 0700);
    const UniqueFd directory(
        ::openat(above.get(), name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    const UniqueFd system(::fsopen("tmpfs", FSOPEN_CLOEXEC));
    if (directory && system &&
        ::fsconfig(system.get(), FSCONFIG_SET_STRING, "mode", "700", 0) == 0 &&
        ::fsconfig(system.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0) {
      const UniqueFd mount(::fsmount(system.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID));
      if (mount && ::move_mount(mount.get(), "", directory.get(), "",
                                MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) == 0) {
        return {};
      }
    }
    return Error::from_errno(errno, "cannot mount " + path.string() + " in the container");
  });
}

Result<RestoredTree> PreparedRestore::Impl::run(const Rights& members, const Owners& owners) {
  auto tree = restore(members, owners);
  if (!tree) end();
  begun = false;
  return tree;
}

Result<RestoredTree> PreparedRestore::Impl::restore(const Rights& members, const Owners& owners) {
  const bool in_container = options.container.has_value();
  GCR_TRY(images::check_memory(directory));
  GCR_ASSIGN(const bool removed_files,
             images::rename_removed_files(
                 directory, in_container ? launch::kRemovedInContainer : launch::kRemovedFiles));
  if (removed_files && in_container) GCR_TRY(make_room_for_removed_files());
  GCR_ASSIGN(const std::string rights, in_launch_format(members));
  GCR_TRY(images::write_file(directory / launch::kMemberRights, rights));
  GCR_ASSIGN(const pid_t root, images::root_pid(directory));
  GCR_ASSIGN(const std::string inventory, images::read_file(directory / kFirstRestoreFile));
  GCR_TRY(memory->hand_over(directory, owners.processes));
  GCR_TRY(shared->hand_over(directory, owners.shared));
  GCR_TRY(line.let_go_on());
  begun = true;
  GCR_TRY(hold.pass(inventory));
  GCR_TRY(watch(root));
  const bool filled = line.has_word();
  if (filled) {
    GCR_TRY(fill(root));
    GCR_TRY(watch(root));
  }
  const Result<int> status = session->wait();
  if (!status) return explain(status.error(), directory, kRestoreLog);
  if (*status != 0) return refusal(*status, directory, kRestoreLog);
  if (!filled) return Error(Code::kInternal, "CRIU ended before all tasks were restored");
  GCR_TRY(check_plugin());
  return take_over(root);
}

/// Takes the tasks over from CRIU, which has ended.
Result<RestoredTree> PreparedRestore::Impl::take_over(pid_t root) {
  auto impl = std::make_unique<RestoredTree::Impl>();
  const pid_t init = session->init_pid();
  impl->init = session->release_init();
  impl->control = session->release_control();
  if (options.container) {
    impl->control.reset();
    impl->init_process = options.container->init;
  } else {
    GCR_ASSIGN(impl->init_process, procfs::Process::open(init));
  }
  GCR_ASSIGN(const pid_t pid, procfs::find_in_namespace(init, root));
  GCR_ASSIGN(impl->root, procfs::Process::open(pid));
  impl->root_in_namespace = root;
  GCR_ASSIGN(const pid_t again, procfs::find_in_namespace(init, root));
  if (again != pid) return Error(Code::kNotFound, "the restored process has ended");
  // The caller freezes a process in a group of its own at once.
  if (options.groups.empty()) GCR_TRY(procfs::wait_until_stopped(pid));
  return RestoredTree(std::move(impl));
}

PreparedRestore::PreparedRestore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PreparedRestore::PreparedRestore(PreparedRestore&&) noexcept = default;
PreparedRestore& PreparedRestore::operator=(PreparedRestore&&) noexcept = default;
PreparedRestore::~PreparedRestore() = default;

Result<std::unique_ptr<PreparedRestore::Impl>> PreparedRestore::Impl::make(
    const Command& command, const fs::path& directory, const std::set<pid_t>& used_pids,
    RestoreOptions options) {
  GCR_ASSIGN(HoldingPoint hold, HoldingPoint::create(directory, kFirstRestoreFile));
  const pid_t first = options.container ? range_in_container(used_pids) : free_range(used_pids);
  auto impl =
      std::make_unique<Impl>(command, directory, first, std::move(options), std::move(hold));
  GCR_TRY(impl->start());
  GCR_ASSIGN(CriuMemory in_criu,
             CriuMemory::open(impl->line, impl->session->init_pid(), impl->options.most_in_place));
  impl->in_criu = std::make_unique<CriuMemory>(std::move(in_criu));
  return impl;
}

Result<PreparedRestore> PreparedRestore::create(const Command& command, const fs::path& directory,
                                                const std::set<pid_t>& used_pids,
                                                RestoreOptions options) {
  auto made = [&]() -> Result<std::unique_ptr<Impl>> {
    const bool limited = options.most_in_place != UINT64_MAX;
    GCR_ASSIGN(auto impl, Impl::make(command, directory, used_pids, std::move(options)));
    impl->memory = std::make_unique<PrefilledMemory>(*impl->in_criu, limited);
    impl->shared = std::make_unique<PrefilledSharedMemory>(*impl->in_criu);
    return impl;
  }();
  if (!made) return made.error().while_doing("cannot prepare a restore");
  return PreparedRestore(std::move(*made));
}

Result<bool> PreparedRestore::place(const Window& window, std::span<const std::byte> bytes) {
  return window.shared ? impl_->shared->place(window.memory, window.offset, window.pages, bytes)
                       : impl_->memory->place(window.memory, window.offset, window.pages, bytes);
}

std::uint64_t PreparedRestore::taken_bytes() const {
  return impl_->memory->taken_bytes() + impl_->shared->taken_bytes();
}

Result<RestoredTree> PreparedRestore::run(
    const Rights& members, const std::map<std::uint32_t, std::vector<std::string>>& memories) {
  auto tree = [&]() -> Result<RestoredTree> {
    GCR_ASSIGN(const Owners owners, owners_of(memories));
    GCR_ASSIGN(const std::set<pid_t> used, images::used_pids(impl_->directory));
    if (is_free(impl_->first_pid, used)) return impl_->run(members, owners);
    GCR_ASSIGN(const std::string inventory,
               images::read_file(impl_->directory / kFirstRestoreFile));
    GCR_ASSIGN(auto anew,
               Impl::make(impl_->command, impl_->directory, used, std::move(impl_->options)));
    GCR_TRY(impl_->memory->move_to(*anew->in_criu));
    GCR_TRY(impl_->shared->move_to(*anew->in_criu));
    anew->memory = std::move(impl_->memory);
    anew->shared = std::move(impl_->shared);
    impl_ = std::move(anew);
    GCR_TRY(images::write_file(impl_->directory / kFirstRestoreFile, inventory));
    return impl_->run(members, owners);
  }();
  if (!tree) {
    return tree.error().while_doing("cannot restore from " + impl_->directory.string());
  }
  return tree;
}

}  // namespace gcr::criu
