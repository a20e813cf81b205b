#include <cap-ng.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <vector>

#include "migrate-agent/linux/cgroups/limits.h"
#include "migrate-agent/linux/hostmem/memory_info.h"
#include "migrate-agent/preflight/compare/comparison.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "migrate-agent/process/inspect/sockets.h"
#include "migrate-agent/process/inspect/surroundings.h"
#include "migrate-agent/process/memory_files/incoming.h"
#include "src/base/users.h"

namespace gcr::preflight {
namespace {

void compare_name(const char* kind, unsigned id, const std::string& there, const std::string& here,
                  findings::Findings& findings) {
  if (there == here) return;
  findings.add(findings::kUserUnknown,
               fmt::format("the {} {} is {} at the source and {} here", kind, id,
                           there.empty() ? "unknown" : '"' + there + '"',
                           here.empty() ? "unknown" : '"' + here + '"'));
}

void compare_names(const proto::ProcessFacts& process, findings::Findings& findings) {
  compare_name("user", process.uid(), process.user(), user_name(process.uid()), findings);
  compare_name("group", process.gid(), process.group(), group_name(process.gid()), findings);
}

void compare_capabilities(const proto::ProcessFacts& process, const proto::HostFacts& here,
                          findings::Findings& findings) {
  const std::uint64_t beyond = process.capabilities() & ~here.capabilities();
  if (beyond != 0) {
    findings.add(findings::kCapabilities, fmt::format("the process has {}, which the agent lacks",
                                                      capability_names(beyond)));
  }
}

bool has_profile(const std::string& profile) {
  std::ifstream profiles("/sys/kernel/security/apparmor/profiles");
  for (std::string line; std::getline(profiles, line);) {
    if (line.starts_with(profile + " (")) return true;
  }
  return false;
}

void compare_profile(const std::string& profile, findings::Findings& findings) {
  if (profile.empty() || has_profile(profile)) return;
  findings.add(findings::kSecurityLabel,
               fmt::format("this host has no AppArmor profile \"{}\"", profile));
}

/// Compares SELinux contexts: a restored process gets that of the agent. If this host has no
/// SELinux, a process that was unconfined loses nothing.
void compare_context(const std::string& there, findings::Findings& findings) {
  const std::string here = process::selinux_context(::getpid());
  const bool confined = there.find(":unconfined_t:") == std::string::npos;
  if (there.empty() || here == there || (here.empty() && !confined)) return;
  findings.add(findings::kSecurityLabel,
               here.empty() ? fmt::format("the process has the SELinux context {}, and this host "
                                          "has no SELinux",
                                          there)
                            : fmt::format("the process has the SELinux context {}, and would get "
                                          "that of the agent here, {}",
                                          there, here));
}

/// Returns a limit of /proc/sys; 0 if it cannot be read.
std::uint64_t kernel_limit(const char* name) {
  return hostmem::read_number(std::string("/proc/sys/") + name).value_or(0);
}

void check_limits(const proto::ProcessFacts& process, const proto::HostFacts& here,
                  findings::Findings& findings) {
  rlimit own{};
  ::getrlimit(RLIMIT_NOFILE, &own);
  const bool may_raise = (here.capabilities() & (std::uint64_t{1} << CAP_SYS_RESOURCE)) != 0;
  const std::uint64_t most = may_raise ? kernel_limit("fs/nr_open") : own.rlim_max;
  if (process.open_files_limit() > most) {
    findings.add(findings::kOpenFilesLimit,
                 fmt::format("the process may open {} files, here at most {}",
                             process.open_files_limit(), most));
  }
  const std::uint64_t mappings = kernel_limit("vm/max_map_count");
  if (process.mappings() > mappings) {
    findings.add(findings::kMappingLimit,
                 fmt::format("the process has {} mappings, here at most {} are allowed",
                             process.mappings(), mappings));
  }
  const auto greatest = std::ranges::max_element(process.used_pids());
  const std::uint64_t pids = kernel_limit("kernel/pid_max");
  if (greatest != process.used_pids().end() && *greatest > 0 &&
      static_cast<std::uint64_t>(*greatest) >= pids) {
    findings.add(findings::kPidLimit,
                 fmt::format("the process uses the PID or TID {}, here the greatest is {}",
                             *greatest, pids - 1));
  }
}

void check_hugepages(const proto::ProcessFacts& process, findings::Findings& findings) {
  for (const proto::HugepageUse& use : process.hugepages()) {
    const auto counters = hostmem::hugepage_counters(
        fmt::format("/sys/kernel/mm/hugepages/hugepages-{}kB", use.page_bytes() / kKiB));
    const std::uint64_t free = counters ? counters->available() * use.page_bytes() : 0;
    if (free >= use.bytes()) continue;
    findings.add(
        findings::kHugepagesTooFew,
        fmt::format("the process has {} in hugepages of {}, here {} are free",
                    format_bytes(use.bytes()), format_bytes(use.page_bytes()), format_bytes(free)));
  }
}

/// Checks that a connection, one end of which is `socket`, does not exist on this host; `taken` are
/// the sockets of this host.
void check_connection(const proto::BoundSocket& socket, const process::InternetSocket::Ends& ends,
                      const std::vector<process::InternetSocket>& taken,
                      findings::Findings& findings) {
  const bool is_taken = std::ranges::any_of(
      taken, [&](const auto& other) { return other.connection && other.ends() == ends; });
  if (!is_taken) return;
  findings.add(
      findings::kAddressInUse,
      fmt::format("a program here has a TCP connection from {} port {} to {} port {}",
                  std::get<0>(ends), socket.port(), std::get<2>(ends), socket.remote_port()));
}

void check_addresses(const proto::ProcessFacts& process, const process::Addresses& addresses,
                     findings::Findings& findings) {
  const auto is_connection = [](const proto::BoundSocket& socket) {
    return !socket.remote_address().empty();
  };
  std::vector<process::InternetSocket> taken;
  if (std::ranges::any_of(process.sockets(), is_connection)) {
    taken = process::internet_sockets();
  }
  for (const proto::BoundSocket& socket : process.sockets()) {
    const bool connection = is_connection(socket);
    const auto local = addresses.here(socket.address());
    const auto remote = addresses.here(connection ? socket.remote_address() : socket.address());
    if (!local || !remote) {
      findings.add(
          findings::kAddressMissing,
          fmt::format("the process has {} {} port {}, and this host has no address to replace it",
                      socket.protocol(), local ? socket.remote_address() : socket.address(),
                      local ? socket.remote_port() : socket.port()));
    } else if (connection) {
      check_connection(socket, {*local, socket.port(), *remote, socket.remote_port()}, taken,
                       findings);
    } else {
      const Status free =
          process::check_free(socket.protocol(), *local, static_cast<std::uint16_t>(socket.port()));
      if (!free) findings.add(findings::kAddressInUse, free.error().message());
    }
  }
}

}  // namespace

std::string capability_names(std::uint64_t set) {
  std::string names;
  for (unsigned number = 0; number < 64; ++number) {
    if ((set >> number & 1) == 0) continue;
    if (!names.empty()) names += ", ";
    const char* name = number <= CAP_LAST_CAP ? ::capng_capability_to_name(number) : nullptr;
    std::string text = name != nullptr ? fmt::format("cap_{}", name) : "";
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
    names += text.empty() ? fmt::format("capability {}", number) : text;
  }
  return names;
}

void compare_groups(const proto::ProcessFacts& process, findings::Findings& findings) {
  for (const std::string& what :
       cgroups::unsupported_limits(cgroups::hierarchies(), process.limits())) {
    findings.add(findings::kCgroupLimits,
                 fmt::format("its control groups limit it to {}, which this host cannot apply: {}",
                             cgroups::describe(process.limits()), what));
  }
}

void compare_process(const proto::ProcessFacts& process, const proto::HostFacts& here,
                     bool in_container, findings::Findings& findings) {
  if (!in_container) compare_names(process, findings);
  compare_capabilities(process, here, findings);
  compare_profile(process.apparmor_profile(), findings);
  if (!in_container) compare_context(process.selinux_context(), findings);
  check_limits(process, here, findings);
  check_hugepages(process, findings);
}

void compare_place(const proto::ProcessFacts& process, const process::Addresses& addresses,
                   const std::set<std::string>& coming, findings::Findings& findings) {
  check_addresses(process, addresses, findings);
  std::set<std::string> not_here = coming;
  for (const proto::FileFact& file : process.files()) {
    if (file.carried()) not_here.insert(file.path());
  }
  process::compare_files(process.files(), process.credentials(), findings, not_here);
}

Result<std::set<std::string>> compare_memory_files(const proto::PreflightRequest& request,
                                                   findings::Findings& findings) {
  GCR_ASSIGN(const auto files,
             memory_files::plan(request.memory_files(), request.boot_id(), findings));
  std::vector<proto::Credentials> members;
  for (const proto::ProcessFacts& member : request.members()) {
    members.push_back(member.credentials());
  }
  memory_files::check_owners(files, members, findings);
  return memory_files::coming_names(files);
}

}  // namespace gcr::preflight
