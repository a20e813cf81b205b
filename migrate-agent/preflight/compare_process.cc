#include <arpa/inet.h>
#include <cap-ng.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <memory>
#include <set>

#include "migrate-agent/cgroups/limits.h"
#include "migrate-agent/landing/memory_info.h"
#include "migrate-agent/memory_files/incoming.h"
#include "migrate-agent/preflight/comparison.h"
#include "migrate-agent/process/named_files.h"
#include "migrate-agent/process/sockets.h"
#include "migrate-agent/process/surroundings.h"
#include "src/base/users.h"

namespace gcr::agent {
namespace {

using preflight::Findings;

void compare_name(const char* kind, unsigned id, const std::string& there, const std::string& here,
                  Findings& findings) {
  if (there == here) return;
  findings.add("user-unknown", fmt::format("the {} {} is {} at the source and {} here", kind, id,
                                           there.empty() ? "nameless" : '"' + there + '"',
                                           here.empty() ? "nameless" : '"' + here + '"'));
}

void compare_ids(const proto::ProcessFacts& process, const proto::HostFacts& here,
                 Findings& findings) {
  compare_name("user", process.uid(), process.user(), user_name(process.uid()), findings);
  compare_name("group", process.gid(), process.group(), group_name(process.gid()), findings);
  const std::uint64_t beyond = process.capabilities() & ~here.capabilities();
  if (beyond != 0) {
    findings.add("capabilities", fmt::format("the process has {}, which the agent cannot hand on",
                                             capability_names(beyond)));
  }
  if (process.security_label().empty()) return;
  std::ifstream profiles("/sys/kernel/security/apparmor/profiles");
  for (std::string line; std::getline(profiles, line);) {
    if (line.starts_with(process.security_label() + " (")) return;
  }
  findings.add("security-label",
               fmt::format("this host has no AppArmor profile \"{}\"", process.security_label()));
}

/// 0 if it cannot be read.
std::uint64_t kernel_limit(const char* name) {
  return landing::read_number(std::string("/proc/sys/") + name).value_or(0);
}

void check_limits(const proto::ProcessFacts& process, const proto::HostFacts& here,
                  Findings& findings) {
  rlimit own{};
  ::getrlimit(RLIMIT_NOFILE, &own);
  const bool may_raise = (here.capabilities() & (std::uint64_t{1} << CAP_SYS_RESOURCE)) != 0;
  const std::uint64_t most = may_raise ? kernel_limit("fs/nr_open") : own.rlim_max;
  if (process.open_files_limit() > most) {
    findings.add("open-files-limit", fmt::format("the process may open {} files, here at most {}",
                                                 process.open_files_limit(), most));
  }
  const std::uint64_t mappings = kernel_limit("vm/max_map_count");
  if (process.mappings() > mappings) {
    findings.add("mapping-limit", fmt::format("the process has {} mappings, here at most {} are "
                                              "allowed",
                                              process.mappings(), mappings));
  }
  const auto greatest = std::ranges::max_element(process.used_pids());
  const std::uint64_t pids = kernel_limit("kernel/pid_max");
  if (greatest != process.used_pids().end() && *greatest > 0 &&
      static_cast<std::uint64_t>(*greatest) >= pids) {
    findings.add("pid-limit", fmt::format("the process uses the number {}, here the greatest is {}",
                                          *greatest, pids - 1));
  }
}

void check_hugepages(const proto::ProcessFacts& process, Findings& findings) {
  for (const proto::HugepageUse& use : process.hugepages()) {
    const auto counters = landing::hugepage_counters(
        fmt::format("/sys/kernel/mm/hugepages/hugepages-{}kB", use.page_bytes() / kKiB));
    const std::uint64_t free = counters ? counters->available() * use.page_bytes() : 0;
    if (free >= use.bytes()) continue;
    findings.add(
        "hugepages-too-few",
        fmt::format("the process has {} in hugepages of {}, here {} are free",
                    format_bytes(use.bytes()), format_bytes(use.page_bytes()), format_bytes(free)));
  }
}

struct FreeInterfaces {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

bool is_wildcard(const std::string& address) { return address == "0.0.0.0" || address == "::"; }

/// In numbers.
std::set<std::string> own_addresses() {
  std::set<std::string> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  const std::unique_ptr<ifaddrs, FreeInterfaces> interfaces(list);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const int family = at->ifa_addr->sa_family;
    const void* number = nullptr;
    if (family == AF_INET) {
      number = &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
    } else if (family == AF_INET6) {
      number = &reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
    }
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (number != nullptr && ::inet_ntop(family, number, text.data(), text.size()) != nullptr) {
      addresses.insert(text.data());
    }
  }
  return addresses;
}

/// All of 127/8 is there wherever the loopback interface is.
bool is_here(const std::string& address, const std::set<std::string>& own) {
  if (is_wildcard(address) || own.contains(address)) return true;
  return address.starts_with("127.") && own.contains("127.0.0.1");
}

void check_addresses(const proto::ProcessFacts& process, Findings& findings) {
  if (process.sockets().empty()) return;
  const std::set<std::string> own = own_addresses();
  const auto taken = process::internet_sockets(::getpid());
  for (const proto::BoundSocket& socket : process.sockets()) {
    const std::string name =
        fmt::format("{} {} port {}", socket.protocol(), socket.address(), socket.port());
    if (!is_here(socket.address(), own)) {
      findings.add("address-missing", "the process is bound to " + name);
    }
    const bool in_use = std::ranges::any_of(taken, [&](const process::InternetSocket& other) {
      return !other.connection && other.port != 0 && other.port == socket.port() &&
             other.protocol == socket.protocol() &&
             (other.address == socket.address() || is_wildcard(other.address) ||
              is_wildcard(socket.address()));
    });
    if (in_use) findings.add("address-in-use", "a program here has " + name);
  }
}

/// What its control groups limited at the source stays limited.
void check_groups(const proto::ProcessFacts& process, Findings& findings) {
  for (const std::string& what : cgroups::not_kept(cgroups::hierarchies(), process.limits())) {
    findings.add("cgroup-limits",
                 fmt::format("its control groups allow it {}, which cannot be kept here: {}",
                             cgroups::describe(process.limits()), what));
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

void compare_process(const proto::ProcessFacts& process, const proto::HostFacts& here,
                     const std::set<std::string>& coming, Findings& findings) {
  compare_ids(process, here, findings);
  check_limits(process, here, findings);
  check_hugepages(process, findings);
  check_addresses(process, findings);
  check_groups(process, findings);
  process::compare_files(process.files(), process.credentials(), findings, coming);
}

Result<std::set<std::string>> compare_memory_files(const proto::PreflightRequest& request,
                                                   Findings& findings) {
  GCR_ASSIGN(const auto files,
             memory_files::look(request.memory_files(), request.boot_id(), findings));
  std::vector<proto::Credentials> members;
  for (const proto::ProcessFacts& member : request.members()) {
    members.push_back(member.credentials());
  }
  memory_files::check_owners(files, members, findings);
  return memory_files::coming_names(files);
}

}  // namespace gcr::agent
