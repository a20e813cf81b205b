#include "migrate-agent/criu/threads/dumped_threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "migrate-agent/criu/threads/interrupted_calls.h"
#include "src/base/side_by_side.h"

namespace gcr::criu {
namespace {

template <class Words>
Result<std::uint64_t> capabilities(const Words& words) {
  if (words.empty() || words.size() > 2) {
    return Error(Code::kDataLoss, fmt::format("a set of capabilities has {} words", words.size()));
  }
  return words[0] | (words.size() > 1 ? std::uint64_t{words[1]} << 32 : 0);
}

/// Seccomp modes by process: those of the leading threads, in their images.
using LeaderModes = std::map<pid_t, std::uint32_t>;

/// The mode that a thread would get. Where all threads of a process have the same filters, CRIU
/// writes the leader's alone, and the restored leader sets them for all
/// (SECCOMP_FILTER_FLAG_TSYNC).
std::uint32_t seccomp_mode(const wire::ThreadCore& core, const proto::Credentials& kernel,
                           std::uint32_t leader) {
  const bool by_leader = core.seccomp_mode() == 0 && kernel.seccomp_mode() != 0;
  return by_leader ? leader : core.seccomp_mode();
}

/// The rights that a thread would get, but the kernel's seccomp filters: CRIU reads them by ptrace.
Result<proto::Credentials> in_image(const wire::ThreadCore& core, const proto::Credentials& kernel,
                                    std::uint32_t leader) {
  const wire::Creds& creds = core.creds();
  proto::Credentials thread;
  thread.set_thread(kernel.thread());
  for (const std::uint32_t id : {creds.uid(), creds.euid(), creds.suid(), creds.fsuid()}) {
    thread.add_uids(id);
  }
  for (const std::uint32_t id : {creds.gid(), creds.egid(), creds.sgid(), creds.fsgid()}) {
    thread.add_gids(id);
  }
  *thread.mutable_groups() = creds.groups();
  std::ranges::sort(*thread.mutable_groups());
  GCR_ASSIGN(const std::uint64_t inheritable, capabilities(creds.cap_inh()));
  GCR_ASSIGN(const std::uint64_t permitted, capabilities(creds.cap_prm()));
  GCR_ASSIGN(const std::uint64_t effective, capabilities(creds.cap_eff()));
  GCR_ASSIGN(const std::uint64_t bounding, capabilities(creds.cap_bnd()));
  GCR_ASSIGN(const std::uint64_t ambient, capabilities(creds.cap_amb()));
  thread.set_inheritable(inheritable);
  thread.set_permitted(permitted);
  thread.set_effective(effective);
  thread.set_bounding(bounding);
  thread.set_ambient(ambient);
  thread.set_no_new_privileges(creds.no_new_privs() != 0);
  thread.set_seccomp_mode(seccomp_mode(core, kernel, leader));
  thread.set_seccomp_filters(kernel.seccomp_filters());
  return thread;
}

Status check_rights(const proto::Credentials& kernel, const wire::ThreadCore& core,
                    std::uint32_t leader) {
  if (!core.has_creds()) {
    return Error(Code::kDataLoss, "the image does not tell the thread's rights");
  }
  GCR_ASSIGN(const proto::Credentials dumped, in_image(core, kernel, leader));
  GCR_TRY(process::compare_credentials(dumped, "in CRIU's image", kernel, "by the kernel"));
  if (core.creds().secbits() == 0) return {};
  return Error(Code::kDataLoss,
               fmt::format("thread {}: securebits are {:#x} in CRIU's image; only 0 can be moved",
                           kernel.thread(), core.creds().secbits()));
}

/// Of the thread, by its id in its own PID namespace.
std::string image_name(const process::ThreadRights& thread) {
  return fmt::format("core-{}.img", thread.rights.thread());
}

Result<wire::Core> core_in(const std::string& image) {
  GCR_ASSIGN(const std::string record, images::record_in(image, images::kCoreMagic));
  wire::Core core;
  if (!core.ParseFromString(record)) return Error(Code::kDataLoss, "the image cannot be read");
  return core;
}

Result<LeaderModes> leader_modes(const std::vector<process::ThreadRights>& threads,
                                 const std::vector<std::string>& contents) {
  LeaderModes modes;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    if (threads[i].pid != threads[i].tid || threads[i].rights.seccomp_mode() == 0) continue;
    GCR_ASSIGN(const wire::Core core, core_in(contents[i]));
    modes[threads[i].pid] = core.thread_core().seccomp_mode();
  }
  return modes;
}

}  // namespace

Result<std::vector<process::ThreadRights>> settle_threads(pid_t root, const images::ReadImage& read,
                                                          const images::WriteImage& write) {
  GCR_ASSIGN(auto threads, process::read_credentials(root));
  std::vector<std::string> contents;
  for (const auto& thread : threads) {
    GCR_ASSIGN(contents.emplace_back(), read(image_name(thread)));
  }
  GCR_ASSIGN(const LeaderModes leaders, leader_modes(threads, contents));
  const auto settle = [&](std::size_t i) -> Status {
    const auto& [pid, tid, rights] = threads[i];
    GCR_ASSIGN(wire::Core core, core_in(contents[i]));
    contents[i].clear();
    const auto leader = leaders.find(pid);
    GCR_TRY(check_rights(rights, core.thread_core(), leader == leaders.end() ? 0 : leader->second));
    GCR_ASSIGN(bool changed, restart_interrupted_call(pid, tid, core));
    if (pid == root && core.thread_core().has_pdeath_sig()) {
      core.mutable_thread_core()->clear_pdeath_sig();
      changed = true;
    }
    if (changed) contents[i] = images::image_of(images::kCoreMagic, core.SerializeAsString());
    return {};
  };
  GCR_TRY(share_out_brief(threads.size(), [&](std::size_t i) -> Status {
    const Status settled = settle(i);
    if (!settled) return settled.error().while_doing(image_name(threads[i]));
    return {};
  }));
  for (std::size_t i = 0; i < threads.size(); ++i) {
    if (!contents[i].empty()) GCR_TRY(write(image_name(threads[i]), contents[i]));
  }
  return threads;
}

}  // namespace gcr::criu
