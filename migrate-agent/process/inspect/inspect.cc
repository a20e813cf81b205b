#include "migrate-agent/process/inspect/inspect.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "migrate-agent/linux/procfs/mount_namespace.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/access.h"
#include "migrate-agent/process/inspect/credentials.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "migrate-agent/process/inspect/surroundings.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kOtherExamination{20};
constexpr unsigned long kKernelThread = 0x00200000;  // PF_KTHREAD in the flags of stat

Error no_such_process(pid_t pid) {
  return Error(Code::kNotFound, "there is no process " + std::to_string(pid));
}

procfs::Stat stat_of(pid_t pid) { return procfs::read_stat(pid).value_or(procfs::Stat()); }

void look_at_kind(pid_t pid, Inspection& inspection) {
  if (stat_of(pid).flags & kKernelThread) {
    inspection.findings.add(findings::kNotOurs,
                            "process " + describe_process(pid) + " is a kernel thread");
  } else if (pid == 1) {
    inspection.findings.add(findings::kNotOurs, "process 1 is the init of this host");
  }
  for (pid_t at = ::getpid(); at > 1; at = stat_of(at).parent) {
    if (at != pid) continue;
    inspection.findings.add(findings::kNotOurs,
                            "process " + describe_process(pid) + " is an agent or started it");
  }
}

void look_at_namespaces(pid_t pid, const Together& together, Inspection& inspection) {
  std::string others;
  for (const std::string kind : {"net", "uts", "user", "cgroup"}) {
    const pid_t owner = kind == "user" ? ::getpid() : together.in_place_of();
    if (procfs::namespace_link(pid, kind) == procfs::namespace_link(owner, kind)) continue;
    others += (others.empty() ? "" : ", ") + kind;
  }
  if (others.empty()) return;
  inspection.findings.add(findings::kNamespaces,
                          fmt::format("it is in {} namespaces other than the {}", others,
                                      together.container() ? "container's" : "agent's"));
}

/// An IPC namespace moves as a whole, unless it is that of the host or of a container.
void look_at_ipc(pid_t pid, const Together& together, Inspection& inspection) {
  const std::string theirs = procfs::namespace_link(pid, "ipc");
  if (theirs == procfs::namespace_link(together.in_place_of(), "ipc")) return;
  for (const pid_t other : procfs::processes()) {
    if (together.contains(other) || procfs::namespace_link(other, "ipc") != theirs) continue;
    inspection.findings.add(findings::kNamespaces,
                            "its IPC namespace is also that of process " + describe_process(other));
    return;
  }
}

/// CRIU will work in it.
Status check_mount_namespace(pid_t pid) {
  GCR_ASSIGN(const auto mounts, procfs::MountNamespace::of(pid));
  const pid_t self = ::getpid();
  const bool ours = mounts.is_that_of(self);
  if (ours && procfs::namespace_link(pid, "pid") == procfs::namespace_link(self, "pid")) return {};
  if (!ours) GCR_TRY(mounts.check_owner());
  GCR_TRY(procfs::check_view(pid));
  return procfs::uses_kfd(pid) ? procfs::check_view_of_gpus(pid) : Status();
}

void look_at_mounts(pid_t pid, Inspection& inspection) {
  const Status safe = check_mount_namespace(pid);
  if (!safe) inspection.findings.add(findings::kMountNamespace, safe.error().message());
}

/// Another examination traces a thread for microseconds (migrate-agent/criu/threads/landlock.h).
std::string tracer_of(pid_t pid, const std::map<std::string, std::string>& status) {
  const auto tracer = status.find("TracerPid");
  if (tracer == status.end() || tracer->second == "0") return "0";
  std::this_thread::sleep_for(kOtherExamination);
  return procfs::status_field(std::to_string(pid), "TracerPid");
}

void look_at_tracer(pid_t pid, const std::map<std::string, std::string>& status,
                    findings::Findings& findings) {
  const std::string tracer = tracer_of(pid, status);
  if (tracer.empty() || tracer == "0") return;
  findings.add(findings::kTraced,
               "process " + describe_process(std::atoi(tracer.c_str())) + " traces it");
}

void look_at_state(pid_t pid, const std::map<std::string, std::string>& status,
                   Inspection& inspection) {
  look_at_tracer(pid, status, inspection.findings);
  if (procfs::state(std::to_string(pid)) == 'T') {
    inspection.findings.add(findings::kStopped, "it is stopped and will run at the destination");
  }
}

/// The files that the process has by name, and those of them that are compared only by size.
Status look_at_files(pid_t pid, Inspection& inspection) {
  GCR_ASSIGN(auto files, named_files(pid));
  for (NamedFile& file : files) {
    proto::FileFact& fact = *inspection.facts.add_files();
    fact = std::move(file.fact);
    if (!fact.has_size_bytes() || !fact.build_id().empty() || !fact.sha256().empty()) continue;
    inspection.findings.add(findings::kFileBySize, fact.path() + " is compared by its size only");
  }
  return {};
}

/// The rights of its first thread.
Status look_at_credentials(pid_t pid, Inspection& inspection) {
  const auto found = find_rights(pid, [&](const proto::Credentials& first) {
    *inspection.facts.mutable_credentials() = first;
    return true;
  });
  return found ? Status() : Status(found.error());
}

Confinement confinement_of(pid_t pid) {
  Confinement found;
  for (const char* kind : {"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"}) {
    found.namespaces[kind] = procfs::namespace_link(pid, kind);
  }
  std::error_code error;
  found.root = fs::read_symlink("/proc/" + std::to_string(pid) + "/root", error);
  found.apparmor_profile = apparmor_profile(pid);
  found.selinux_context = selinux_context(pid);
  return found;
}

void compare(const Confinement& before, const Confinement& now, findings::Findings& findings) {
  for (const auto& [kind, link] : now.namespaces) {
    if (link == before.namespaces.at(kind)) continue;
    findings.add(findings::kNamespaces,
                 "it has left the " + kind + " namespace that it was examined in");
  }
  if (now.root != before.root) {
    findings.add(findings::kRootDirectory,
                 "its root directory is " + now.root + " now, and was " + before.root);
  }
  const auto compare_labels = [&](const char* what, const std::string& was, const std::string& is) {
    if (is == was) return;
    findings.add(findings::kSecurityLabel,
                 "its " + std::string(what) + " is \"" + is + "\" now, and was \"" + was + "\"");
  };
  compare_labels("AppArmor profile", before.apparmor_profile, now.apparmor_profile);
  compare_labels("SELinux context", before.selinux_context, now.selinux_context);
}

}  // namespace

Result<findings::Findings> inspect_again(pid_t pid, const Confinement& before) {
  const auto status = procfs::status_fields(std::to_string(pid));
  if (status.empty()) return no_such_process(pid);
  Inspection inspection;
  compare(before, confinement_of(pid), inspection.findings);
  look_at_tracer(pid, status, inspection.findings);
  GCR_TRY(look_at_removed_files(pid, inspection.findings));
  GCR_TRY(inspect_descriptors(pid, nullptr, false, OutsideTcp::kRefuse, inspection));
  return std::move(inspection.findings);
}

Result<Inspection> inspect(pid_t pid, const Together& together, OutsideTcp outside_tcp,
                           const proto::GroupLimits* limits) {
  const std::map<std::string, std::string> status = procfs::status_fields(std::to_string(pid));
  const auto stat = procfs::read_stat(pid);
  if (pid <= 0 || !status.contains("Tgid") || !stat) return no_such_process(pid);
  if (procfs::has_ended(*stat)) {
    return Error(Code::kNotFound, "process " + std::to_string(pid) + " has ended");
  }
  if (status.at("Tgid") != std::to_string(pid)) {
    return Error(Code::kNotFound, std::to_string(pid) + " is a thread of process " +
                                      status.at("Tgid") + ", not a process");
  }
  Inspection inspection;
  proto::ProcessFacts& facts = inspection.facts;
  facts.set_command(command_of(pid));
  if (facts.command().empty()) facts.set_command(status.at("Name"));
  facts.set_threads(static_cast<std::uint32_t>(procfs::threads(pid).size()));
  if (status.contains("VmRSS"))
    facts.set_resident_bytes(std::strtoull(status.at("VmRSS").c_str(), nullptr, 10) * 1024);
  GCR_ASSIGN(const pid_t inner, pid_in_namespace(pid));
  facts.set_pid_in_namespace(inner);

  look_at_kind(pid, inspection);
  if (inspection.findings.has_blocker())
    return inspection;  // the process must not be examined further
  look_at_namespaces(pid, together, inspection);
  look_at_ipc(pid, together, inspection);
  look_at_mounts(pid, inspection);
  look_at_state(pid, status, inspection);
  const bool same_network =
      procfs::namespace_link(pid, "net") == procfs::namespace_link(together.in_place_of(), "net");
  GCR_TRY(inspect_descriptors(pid, &together, same_network, outside_tcp, inspection));
  inspect_mappings(pid, together, inspection);
  GCR_TRY(look_at_files(pid, inspection));
  GCR_TRY(look_at_removed_files(pid, inspection.findings));
  GCR_TRY(look_at_credentials(pid, inspection));
  inspection.confinement = confinement_of(pid);
  inspect_surroundings(pid, limits, inspection);
  return inspection;
}

std::string command_of(pid_t pid) {
  std::string text = procfs::read_text("/proc/" + std::to_string(pid) + "/cmdline");
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

Result<pid_t> pid_in_namespace(pid_t pid) {
  const std::vector<pid_t> pids = procfs::namespace_pids(std::to_string(pid));
  if (pids.empty()) return no_such_process(pid);
  return pids.back();
}

}  // namespace gcr::process
