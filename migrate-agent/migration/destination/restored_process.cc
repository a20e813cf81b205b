#include "migrate-agent/migration/destination/restored_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/criu/sockets/socket_options.h"
#include "migrate-agent/criu/threads/settings.h"
#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/gpu/access/driver/driver_access.h"
#include "migrate-agent/gpu/mover/give.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/credentials.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "src/base/side_by_side.h"

namespace gcr::migration {
namespace {

void identify(const procfs::Process& process, journal::ProcessId& out) {
  out.set_pid(process.pid());
  out.set_start_time(process.start_time());
}

/// The rights of each member, which are those of its first thread.
criu::Rights rights_of(const process::DumpedMembers& members) {
  criu::Rights rights;
  for (const proto::DumpedMember& member : members) {
    rights[member.pid_in_namespace()] = member.credentials(0);
  }
  return rights;
}

}  // namespace

Result<std::unique_ptr<RestoredProcess>> RestoredProcess::create(
    const std::shared_ptr<const device::Driver>& driver, criu::PreparedRestore& restore,
    const images::ImageStore::Memories& memories, const Expected& expected, cgroups::Group group,
    worker::Phases& phases) {
  GCR_ASSIGN(auto tree, phases.time("process", "criu restore", [&] {
    return restore.run(rights_of(expected.members), memories);
  }));
  std::unique_ptr<RestoredProcess> process(
      new RestoredProcess(std::move(tree), std::move(group), phases));
  GCR_TRY(phases.time("process", "freeze", [&] { return process->hold(); }));
  GCR_TRY(fault::point("destination.criu-restored"));
  GCR_TRY(phases.time("process", "compare rights", [&]() -> Status {
    GCR_TRY(process->find_members(expected.members));
    return process->check_files(expected.files);
  }));
  GCR_TRY(process->end_connections(expected.sockets));
  GCR_TRY(process->find_gpu_users(*driver, expected));
  return process;
}

Status RestoredProcess::restore_control(const std::set<pid_t>& running,
                                        const std::vector<device::GpuPair>& gpu_map) {
  GCR_ASSIGN(frozen_, phases_.time("process", "seize", [&] {
    return tracing::FrozenThreads::seize(members_, running, [&] { return group_.thaw(); });
  }));
  GCR_TRY(fault::point("destination.frozen"));
  GCR_TRY(phases_.time("process", "control restore", [&] {
    return side_by_side(gpu_users_, [&](GpuUser& user) { return user.control->restore(gpu_map); });
  }));
  GCR_TRY(phases_.time("process", "unlock", [&] {
    return side_by_side(gpu_users_, [](GpuUser& user) { return user.control->unlock(); });
  }));
  GCR_TRY(fault::point("destination.control-restored"));
  return phases_.time("process", "find door", [&] {
    return side_by_side(gpu_users_, [](GpuUser& user) -> Status {
      if (user.access != nullptr) return {};
      GCR_ASSIGN(user.access, gpu::open_access(user.pid));
      return {};
    });
  });
}

/// Keeps the processes stopped as CRIU left them, so that SIGCONT has no effect. Without a group
/// that CRIU can use, waits until all are stopped: threads that a v1 freezer has frozen could not
/// be seized.
Status RestoredProcess::hold() {
  if (!group_.directory_for_criu().empty()) return group_.freeze();
  for (const pid_t pid : procfs::tree(tree_.pid())) {
    if (procfs::state(std::to_string(pid)) != 'Z') GCR_TRY(procfs::wait_until_stopped(pid));
  }
  return {};
}

/// Opens the members. All threads below the init must be those that the source described, with the
/// same rights, so there is no process besides the members. In a container only the root counts of
/// the init's children.
Status RestoredProcess::find_members(const process::DumpedMembers& members) {
  google::protobuf::RepeatedPtrField<proto::Credentials> threads;
  for (const proto::DumpedMember& member : members) threads.MergeFrom(member.credentials());
  const bool in_container = !tree_.has_reaper();
  GCR_TRY(process::check_restored_credentials(tree_.init().pid(), threads,
                                              in_container ? tree_.pid() : 0));
  std::map<pid_t, pid_t> restored = procfs::stopped_tree_in_namespace(tree_.pid());
  for (const proto::DumpedMember& member : members) {
    GCR_ASSIGN(auto process, procfs::Process::open(restored[member.pid_in_namespace()]));
    members_.push_back(std::move(process));
  }
  return {};
}

Status RestoredProcess::find_gpu_users(const device::Driver& driver, const Expected& expected) {
  for (const auto& [id, member] : expected.gpu_users) {
    const auto found = std::ranges::find(expected.members, member.pid_in_namespace,
                                         &proto::DumpedMember::pid_in_namespace);
    if (found == expected.members.end()) {
      return Error(Code::kProtocol, fmt::format("process {}, which uses a GPU, was not dumped",
                                                member.pid_in_namespace));
    }
    const pid_t pid = members_[found - expected.members.begin()].pid();
    GpuUser& user = gpu_users_.emplace_back(GpuUser{id, pid, driver.control(pid)});
    if (member.driver_alone) user.access = std::make_unique<gpu::DriverAccess>(pid, driver);
  }
  return {};
}

Status RestoredProcess::check_files(const std::vector<process::VettedFiles>& files) const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    GCR_TRY(process::check_restored_files(members_[i].pid(), files[i]));
  }
  return {};
}

Status RestoredProcess::end_connections(const criu::AdaptedSockets& sockets) const {
  std::vector<pid_t> pids;
  for (const procfs::Process& member : members_) pids.push_back(member.pid());
  return criu::end_connections(pids, sockets.closing, sockets.resetting);
}

Status RestoredProcess::attach(gpu::MemberDescriptors vram,
                               const std::shared_ptr<const device::Driver>& driver,
                               const std::function<void()>& let_go) {
  return phases_.time("process", "attach VRAM", [&] {
    return side_by_side(gpu_users_, [&](GpuUser& user) -> Status {
      const auto theirs = vram.find(user.id);
      if (theirs == vram.end()) return user.access->attach({});
      return mover::give(*user.access, std::move(theirs->second), driver, let_go);
    });
  });
}

Status RestoredProcess::stop_and_freeze() {
  return phases_.time("process", "stop copy", [&]() -> Status {
    if (!frozen_) return group_.freeze();
    for (const GpuUser& user : gpu_users_) GCR_TRY(user.access->resume());
    if (!group_.freezes()) return frozen_->stop_again();
    return frozen_->stop_again(
        [&] { return phases_.time("process", "freeze", [&] { return group_.freeze(); }); });
  });
}

Result<std::vector<std::string>> RestoredProcess::apply_settings(
    const process::DumpedMembers& members) {
  std::vector<std::pair<pid_t, criu::Settings>> settings;
  std::vector<std::pair<pid_t, criu::SocketOptions>> options;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const proto::DumpedMember& member = members[static_cast<int>(i)];
    settings.emplace_back(members_[i].pid(), member.settings());
    options.emplace_back(members_[i].pid(), member.socket_options());
  }
  return phases_.time("process", "apply settings", [&]() -> Result<std::vector<std::string>> {
    GCR_ASSIGN(std::vector<std::string> refused, criu::apply_socket_options(options));
    GCR_ASSIGN(std::vector<std::string> others,
               criu::apply_settings(settings,
                                    {[&] { return group_.thaw(); }, [&] { return group_.freeze(); },
                                     !group_.directory_for_criu().empty()}));
    std::ranges::move(others, std::back_inserter(refused));
    return refused;
  });
}

journal::Restored RestoredProcess::identity() const {
  journal::Restored restored;
  for (const procfs::Process& member : members_) identify(member, *restored.add_members());
  identify(tree_.init(), *restored.mutable_init());
  return restored;
}

void RestoredProcess::leave() {
  left_ = true;
  tree_.release();
}

RestoredProcess::~RestoredProcess() {
  if (left_) return;
  (void)tree_.root().send(SIGKILL);
  (void)group_.thaw();
}

}  // namespace gcr::migration
