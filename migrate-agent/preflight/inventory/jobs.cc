// Finds jobs in a snapshot of every process and its parent, from one pass over /proc.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string>

#include "migrate-agent/linux/procfs/container.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/inventory/host_state.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "migrate-agent/process/slurm/step.h"
#include "src/base/users.h"

namespace gcr::inventory {
namespace {

using procfs::Stat;

/// The init of the container whose job has this root; 0: none.
pid_t container_of(pid_t root) {
  const auto container = procfs::Container::of_root(root);
  return container && *container ? (*container)->init().pid() : 0;
}

/// A snapshot of every process of the host, except those that are exiting.
class Processes {
 public:
  Processes() {
    for (const pid_t pid : procfs::processes()) {
      const auto stat = procfs::read_stat(pid);
      if (!stat || procfs::is_exiting(*stat)) continue;
      stats_.emplace(pid, *stat);
      children_.emplace(stat->parent, pid);
    }
  }

  const Stat* find(pid_t pid) const {
    const auto found = stats_.find(pid);
    return found == stats_.end() ? nullptr : &found->second;
  }

  pid_t parent_of(pid_t pid) const {
    const Stat* stat = find(pid);
    return stat == nullptr ? 0 : stat->parent;
  }

  pid_t root_of(pid_t process) const {
    pid_t root = process;
    for (pid_t at = parent_of(process); can_move_with(at, process); at = parent_of(at)) {
      if (process::is_under_preload(at) || container_of(at) != 0) root = at;
    }
    return root;
  }

  std::set<pid_t> lineage_of(pid_t process) const {
    std::set<pid_t> lineage;
    for (pid_t at = process; at > 0 && lineage.insert(at).second;) at = parent_of(at);
    return lineage;
  }

  std::set<pid_t> tree(pid_t root) const {
    std::vector<pid_t> found{root};
    for (std::size_t at = 0; at < found.size(); ++at) {
      const auto [first, last] = children_.equal_range(found[at]);
      for (auto child = first; child != last; ++child) found.push_back(child->second);
    }
    return {found.begin(), found.end()};
  }

 private:
  bool can_move_with(pid_t ancestor, pid_t process) const {
    const Stat* stat = ancestor > 1 ? find(ancestor) : nullptr;
    if (stat == nullptr || stat->terminal != 0) return false;
    return std::ranges::all_of(std::to_array({"mnt", "pid", "time"}), [&](const char* kind) {
      return procfs::namespace_link(ancestor, kind) == procfs::namespace_link(process, kind);
    });
  }

  std::map<pid_t, Stat> stats_;
  std::multimap<pid_t, pid_t> children_;
};

/// Returns the name of the file that a process executes; empty if it cannot be read.
std::string program_of(pid_t pid) {
  std::error_code error;
  return std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), error).filename();
}

FoundJob describe(pid_t root, const Processes& all) {
  FoundJob found;
  found.members = all.tree(root);
  proto::HostJob& job = found.job;
  job.set_pid(root);
  if (const Stat* stat = all.find(root)) job.set_start_time(stat->start_time);
  job.set_command(process::command_of(root));
  job.set_uid(procfs::owner_of(root));
  job.set_user(user_name(job.uid()));
  if (const auto step = slurm::step_of(root)) {
    job.set_slurm_job(step->job);
    job.set_slurm_step(step->name);
    job.set_slurm_parent(program_of(all.parent_of(root)));
  }
  job.set_container_init(container_of(root));
  job.set_processes(static_cast<std::uint32_t>(found.members.size()));
  for (const pid_t member : found.members) {
    found.owners.insert(procfs::owner_of(member));
    const Stat* stat = all.find(member);
    if (stat != nullptr)
      job.set_resident_bytes(job.resident_bytes() + procfs::resident_bytes(*stat));
  }
  return found;
}

/// Sums the members' VRAM per GPU into `job`; omits it if a member did not report.
void add_gpus(proto::HostJob& job, const std::vector<const FoundProcess*>& users) {
  job.set_gpu_processes(static_cast<std::uint32_t>(users.size()));
  if (!std::ranges::all_of(users, &FoundProcess::has_reported)) return;
  std::map<std::string, std::uint64_t> vram;
  for (const FoundProcess* user : users) {
    for (const proto::GpuUse& use : user->process.gpus()) vram[use.uuid()] += use.vram_bytes();
  }
  for (const auto& [uuid, bytes] : vram) {
    proto::GpuUse& use = *job.add_gpus();
    use.set_uuid(uuid);
    use.set_vram_bytes(bytes);
  }
}

}  // namespace

std::vector<FoundJob> jobs(std::vector<FoundProcess>& processes) {
  const Processes all;
  std::erase_if(processes, [&](const FoundProcess& one) {
    const Stat* stat = all.find(one.process.pid());
    return stat == nullptr || stat->start_time != one.process.start_time();
  });
  std::map<pid_t, std::vector<const FoundProcess*>> users;
  for (FoundProcess& one : processes) {
    one.process.set_job(all.root_of(one.process.pid()));
    one.lineage = all.lineage_of(one.process.pid());
    users[one.process.job()].push_back(&one);
  }
  std::vector<FoundJob> jobs;
  for (const auto& [root, members] : users) {
    jobs.push_back(describe(root, all));
    add_gpus(jobs.back().job, members);
  }
  return jobs;
}

}  // namespace gcr::inventory
