#include "migrate-agent/process/inspect/surroundings.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <vector>

#include "migrate-agent/linux/cgroups/limits.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/units.h"
#include "src/base/users.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t bit(int capability) { return std::uint64_t{1} << capability; }

void look_at_ids(const std::string& process, Inspection& inspection) {
  proto::ProcessFacts& facts = inspection.facts;
  bool only_root = true;
  unsigned first = 0;
  for (const char* field : {"Gid", "Uid"}) {
    std::istringstream ids(procfs::status_field(process, field));
    ids >> first;
    only_root = only_root && first == 0;
    for (unsigned id = 0; ids >> id;) only_root = only_root && id == 0;
    if (field == std::string_view("Gid")) facts.set_gid(first);
  }
  facts.set_uid(first);
  facts.set_user(user_name(facts.uid()));
  facts.set_group(group_name(facts.gid()));
  facts.set_capabilities(procfs::status_bits(process, "CapPrm") |
                         procfs::status_bits(process, "CapInh") |
                         procfs::status_bits(process, "CapAmb"));
  if (!only_root && (capabilities_to_hand_on() & bit(CAP_SYS_RESOURCE)) == 0) {
    inspection.findings.add(findings::kAgentCapabilities,
                            "the agent has no CAP_SYS_RESOURCE, which the limits of a process of "
                            "user " +
                                std::to_string(facts.uid()) + " are read with");
  }
}

void look_at_root(const std::string& process, Inspection& inspection) {
  std::error_code error;
  const std::string root = fs::read_symlink("/proc/" + process + "/root", error);
  if (error || root == "/") return;
  inspection.findings.add(findings::kRootDirectory, "its root directory is " + root);
}

void look_at_cpus(const std::string& process, Inspection& inspection) {
  const std::string ours = procfs::status_field("self", "Cpus_allowed_list");
  for (const pid_t thread : procfs::threads(std::atoi(process.c_str()))) {
    const std::string theirs =
        procfs::status_field(process + "/task/" + std::to_string(thread), "Cpus_allowed_list");
    if (theirs.empty() || theirs == ours || theirs == inspection.facts.limits().cpus()) continue;
    inspection.findings.add(
        findings::kCpuAffinity,
        fmt::format("it may run on CPUs {} alone, the agent on {}", theirs, ours));
    return;
  }
}

void look_at_groups(const std::string& process, Inspection& inspection) {
  auto limits = cgroups::limits_of(cgroups::hierarchies(), std::atoi(process.c_str()));
  if (limits) {
    *inspection.facts.mutable_limits() = std::move(*limits);
  } else {
    inspection.findings.add(findings::kCgroupLimits, limits.error().message());
  }
}

void look_at_limits(const std::string& process, Inspection& inspection) {
  std::ifstream file("/proc/" + process + "/limits");
  static constexpr std::string_view kName = "Max open files";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kName)) continue;
    std::string soft;
    std::uint64_t hard = 0;
    if (std::istringstream(line.substr(kName.size())) >> soft >> hard) {
      inspection.facts.set_open_files_limit(hard);
    }
  }
}

void look_at_memory(const std::string& process, Inspection& inspection) {
  std::ifstream file("/proc/" + process + "/smaps");
  std::map<std::uint64_t, std::uint64_t> huge;  // bytes by the size of pages
  std::uint32_t mappings = 0;
  std::uint64_t page = 0;
  const auto kernel_page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t mapped = 0;
  std::uint64_t anonymous = 0;
  std::uint64_t sealed = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    std::uint64_t kibibytes = 0;
    if (line.starts_with("VmFlags:") && line.find(" sl") != line.npos) sealed += mapped;
    if (!(fields >> name >> kibibytes)) {
      continue;  // a heading, or no figure
    }
    if (name == "Size:") {
      mapped = kibibytes * kKiB;
      ++mappings;
    } else if (name == "KernelPageSize:") {
      page = kibibytes * kKiB;
      if (page > kernel_page) huge[page] += mapped;
    } else if (name == "Anonymous:") {
      anonymous += kibibytes * kKiB;
    }
  }
  inspection.facts.set_mappings(mappings);
  inspection.facts.set_image_bytes(anonymous);
  if (sealed > 0) {
    inspection.findings.add(findings::kMseal,
                            fmt::format("{} of its memory are sealed", format_bytes(sealed)));
  }
  for (const auto& [page_bytes, bytes] : huge) {
    proto::HugepageUse& use = *inspection.facts.add_hugepages();
    use.set_page_bytes(page_bytes);
    use.set_bytes(bytes);
  }
}

/// Mappings with another NUMA policy than the first one, which has none but the thread's.
void look_at_policies(const std::string& process, Inspection& inspection) {
  std::ifstream file("/proc/" + process + "/numa_maps");
  std::string usual;
  std::string example;
  std::size_t others = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string address;
    std::string policy;
    fields >> address >> policy;
    if (usual.empty()) usual = policy;
    if (policy == usual) continue;
    if (others++ == 0) example = fmt::format("{} at {}", policy, address);
  }
  if (others == 0) return;
  inspection.findings.add(findings::kNumaMappings,
                          fmt::format("{} of its mappings have a NUMA policy of their own: {}{}",
                                      others, example, others > 1 ? ", and others" : ""));
}

std::string environment_value(const std::string& process, std::string_view name) {
  std::ifstream file("/proc/" + process + "/environ");
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return {};
}

void look_at_mps(const std::string& process, Inspection& inspection) {
  std::string directory = environment_value(process, "CUDA_MPS_PIPE_DIRECTORY");
  if (directory.empty()) directory = kMpsDirectory;
  const std::string control = "/proc/" + process + "/root" + directory + "/control";
  std::error_code error;
  if (!fs::exists(control, error)) return;
  inspection.findings.add(findings::kMps, "an MPS control daemon serves it from " + directory);
}

/// Whether AMD GPUs retry page faults of the process, where that is a setting of the process.
void look_at_xnack(const std::string& process, Inspection& inspection) {
  if (environment_value(process, "HSA_XNACK") == "1") inspection.facts.set_xnack(true);
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream words(line);
  return {std::istream_iterator<std::string>(words), {}};
}

/// The lines of /proc/sysvipc/`kind` with one of these users in the column "uid".
std::size_t count(const char* kind, const std::set<uid_t>& users) {
  std::ifstream file(fmt::format("/proc/sysvipc/{}", kind));
  std::string line;
  std::getline(file, line);
  const auto columns = words_of(line);
  const auto column = std::ranges::find(columns, "uid") - columns.begin();
  std::size_t found = 0;
  while (std::getline(file, line)) {
    const auto words = words_of(line);
    if (column >= std::ssize(words)) continue;
    found += users.contains(static_cast<uid_t>(std::stoul(words[column]))) ? 1 : 0;
  }
  return found;
}

std::string amount(std::size_t number, const char* one, const char* many) {
  return fmt::format("{} {}", number, number == 1 ? one : many);
}

}  // namespace

std::uint64_t capabilities_to_hand_on() { return procfs::status_bits("self", "CapBnd"); }

std::string apparmor_profile(pid_t pid) {
  std::string label;
  std::ifstream file("/proc/" + std::to_string(pid) + "/attr/apparmor/current");
  std::getline(file, label);
  label = label.substr(0, label.find(" ("));
  return label == "unconfined" ? std::string() : label;
}

std::string selinux_context(pid_t pid) {
  std::string context;
  if (::access("/sys/fs/selinux/enforce", F_OK) != 0) return context;
  std::ifstream file("/proc/" + std::to_string(pid) + "/attr/current");
  std::getline(file, context, '\0');
  return context;
}

void inspect_surroundings(pid_t pid, const proto::GroupLimits* limits, Inspection& inspection) {
  const std::string process = std::to_string(pid);
  look_at_ids(process, inspection);
  look_at_root(process, inspection);
  look_at_xnack(process, inspection);
  if (limits == nullptr) {
    look_at_groups(process, inspection);
  } else {
    *inspection.facts.mutable_limits() = *limits;
  }
  look_at_cpus(process, inspection);
  look_at_limits(process, inspection);
  look_at_memory(process, inspection);
  look_at_policies(process, inspection);
  inspection.facts.set_apparmor_profile(apparmor_profile(pid));
  inspection.facts.set_selinux_context(selinux_context(pid));
  look_at_mps(process, inspection);
}

std::string unattached_objects(const std::set<uid_t>& users) {
  const std::size_t sets = count("sem", users);
  const std::size_t queues = count("msg", users);
  std::string text = sets != 0 ? amount(sets, "set of semaphores", "sets of semaphores") : "";
  if (sets != 0 && queues != 0) text += " and ";
  return queues != 0 ? text + amount(queues, "message queue", "message queues") : text;
}

}  // namespace gcr::process
