#include "tests/fault/holdings.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/linux/hostmem/hugepage_claim.h"

namespace gcr::fault::test {
namespace {

namespace fs = std::filesystem;

constexpr Host kHosts[] = {Host::kA, Host::kB};
constexpr std::string_view kReaper = "gcr-reaper";

const char* name_of(Host host) { return host == Host::kA ? "host a" : "host b"; }

struct Process {
  pid_t pid = -1;
  pid_t parent = -1;
  std::string state;
  std::string program;
  std::string command;
};

std::string link_of(const std::string& path) {
  std::error_code error;
  return fs::read_symlink(path, error).string();
}

std::string command_of(const std::string& directory) {
  std::string command = e2e::read_file(directory + "/cmdline");
  std::ranges::replace(command, '\0', ' ');
  return command.substr(0, 160);
}

/// The processes in the host's network.
std::vector<Process> processes_of(const TwoHosts& hosts, Host host) {
  struct stat status {};
  ::stat(hosts.variable("NS", host).c_str(), &status);
  const std::string network = fmt::format("net:[{}]", status.st_ino);
  std::vector<Process> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (link_of(entry.path() / "ns/net") != network) continue;
    const std::string stat = e2e::read_file(entry.path() / "stat");
    std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    Process process;
    process.pid = std::stoi(name);
    fields >> process.state >> process.parent;
    process.program = fs::path(link_of(entry.path() / "exe")).filename();
    process.command = command_of(entry.path());
    if (process.state != "Z" && !process.program.empty()) found.push_back(process);
  }
  return found;
}

/// Everything below the agent's runtime directory except its permanent directories.
std::vector<std::string> files_of(const TwoHosts& hosts, Host host) {
  const fs::path root = hosts.variable("RUNTIME", host);
  std::vector<std::string> found;
  std::error_code error;
  for (fs::recursive_directory_iterator at(root, error), end; !error && at != end;
       at.increment(error)) {
    if (at.depth() > 0 || !at->is_directory(error))
      found.push_back(at->path().lexically_relative(root));
  }
  std::ranges::sort(found);
  return found;
}

std::uint64_t vram_of(const TwoHosts& hosts, Host host) {
  return hosts.variable("VRAM", host).empty() ? 0 : hosts.vram_used(host, 0);
}

/// No process of a copy has grandchildren.
std::vector<Copy> copies_among(Host host, const std::vector<Process>& processes,
                               const std::string& program) {
  std::set<pid_t> pids;
  for (const Process& process : processes) {
    if (process.program == program) pids.insert(process.pid);
  }
  std::vector<Copy> found;
  for (const Process& process : processes) {
    if (process.program != program || pids.contains(process.parent)) continue;
    const auto is_below = [&](const Process& one) {
      return one.program == program && one.parent == process.pid;
    };
    found.push_back({host, process.pid,
                     1 + static_cast<std::size_t>(std::ranges::count_if(processes, is_below))});
  }
  return found;
}

/// Processes of a host's network other than the daemon, the program, and the init of the program.
std::vector<std::string> strangers(const TwoHosts& hosts, Host host,
                                   const std::vector<Process>& processes,
                                   const std::string& program) {
  std::set<pid_t> inits;
  for (const Process& process : processes) {
    if (process.program == program) inits.insert(process.parent);
  }
  const pid_t daemon = hosts.agent_pid(host);
  std::vector<std::string> found;
  for (const Process& process : processes) {
    if (process.pid == daemon || process.program == program) continue;
    if (process.program == kReaper && inits.contains(process.pid)) continue;
    found.push_back(fmt::format("{}: process {} ({}): {}", name_of(host), process.pid,
                                process.state, process.command));
  }
  return found;
}

/// Control groups of this host's migrations, those of its journals, except the one of a copy that
/// moved here and runs. A restarted agent removes those of an older one when its next worker has
/// ended.
std::vector<std::string> groups(const TwoHosts& hosts, Host host, bool has_copy) {
  std::vector<std::string> found;
  std::vector<std::string> empty;
  const auto hierarchies = cgroups::hierarchies();
  const auto entries = journal::list(hosts.variable("STATE", host));
  if (!entries) return found;
  for (const journal::Entry& entry : *entries) {
    const std::string name = cgroups::kGroupPrefix + entry.path.filename().string();
    const cgroups::Group group(hierarchies, name);
    if (!group.exists()) continue;
    const bool came_here = entry.role == journal::Began::DESTINATION;
    const bool is_free = !group.is_frozen().value_or(true);
    std::string line = fmt::format("{}: control group {}", name_of(host), name);
    if (came_here && is_free && group.is_empty()) {
      empty.push_back(std::move(line));
    } else if (!came_here || !is_free || !has_copy) {
      found.push_back(std::move(line));
    }
  }
  if (empty.size() > 1) std::ranges::move(empty, std::back_inserter(found));
  return found;
}

}  // namespace

std::vector<Copy> copies(const TwoHosts& hosts, const std::string& program) {
  std::vector<Copy> found;
  for (const Host host : kHosts) {
    std::ranges::copy(copies_among(host, processes_of(hosts, host), program),
                      std::back_inserter(found));
  }
  return found;
}

std::vector<std::string> open_journals(const TwoHosts& hosts, Host host) {
  std::vector<std::string> found;
  const auto entries = journal::list(hosts.variable("STATE", host));
  if (!entries) return {entries.error().message()};
  for (const journal::Entry& entry : *entries) {
    const auto contents = journal::read(entry.path);
    if (!contents) {
      found.push_back(contents.error().message());
    } else if (journal::unfinished(contents->records)) {
      const auto kind =
          contents->records.empty() ? "nothing" : contents->records.back().ShortDebugString();
      found.push_back(fmt::format("{}: journal {} ends with {}", name_of(host),
                                  entry.path.filename().string(), kind));
    }
  }
  return found;
}

std::uint64_t unclaimed_hugepages() {
  const hostmem::HugepageLimits limits;
  const auto lock = hostmem::HugepageLock::take(limits);
  if (!lock) throw std::runtime_error(lock.error().message());
  const auto number_in = [](const fs::path& file) {
    return std::stoll("0" + e2e::read_file(file));
  };
  auto pages = number_in(fs::path(limits.kernel_directory) / "nr_overcommit_hugepages");
  for (const auto& entry : fs::directory_iterator(limits.state_directory))
    pages -= number_in(entry);
  return static_cast<std::uint64_t>(pages);
}

Baseline::Baseline(const TwoHosts& hosts, std::string program) : program_(std::move(program)) {
  for (const Host host : kHosts) {
    hosts_[host] = {hosts.descriptors(host), files_of(hosts, host)};
    copy_vram_bytes_ += vram_of(hosts, host);
  }
}

Holdings Baseline::measure(const TwoHosts& hosts) const {
  Holdings holdings;
  for (const Host host : kHosts) {
    const auto processes = processes_of(hosts, host);
    const auto here = copies_among(host, processes, program_);
    std::ranges::copy(here, std::back_inserter(holdings.copies));
    std::ranges::copy(strangers(hosts, host, processes, program_),
                      std::back_inserter(holdings.leftovers));
    look_at(hosts, host, !here.empty(), holdings);
  }
  return holdings;
}

void Baseline::look_at(const TwoHosts& hosts, Host host, bool has_copy, Holdings& holdings) const {
  const OfHost& before = hosts_.at(host);
  const auto complain = [&](std::string what) {
    holdings.leftovers.push_back(fmt::format("{}: {}", name_of(host), what));
  };
  const std::uint64_t vram = vram_of(hosts, host);
  const std::uint64_t allowed = has_copy ? copy_vram_bytes_ : 0;
  if (vram > allowed) complain(fmt::format("{} bytes of VRAM, not {}", vram, allowed));
  const std::uint64_t descriptors = hosts.descriptors(host);
  if (descriptors > before.descriptors) {
    complain(fmt::format("the daemon has {} descriptors, not {}", descriptors, before.descriptors));
  }
  std::vector<std::string> more;
  std::ranges::set_difference(files_of(hosts, host), before.files, std::back_inserter(more));
  for (const std::string& file : more) complain("file " + file);
  std::ranges::copy(groups(hosts, host, has_copy), std::back_inserter(holdings.leftovers));
  std::ranges::copy(open_journals(hosts, host), std::back_inserter(holdings.leftovers));
}

}  // namespace gcr::fault::test
