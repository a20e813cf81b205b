#include "migrate-agent/linux/cgroups/devices.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <sstream>

#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::cgroups {
namespace {

namespace fs = std::filesystem;

constexpr char kDevices[] = "devices";
constexpr char kTerminals[] = "/dev/pts";
constexpr char kTerminalMultiplexer[] = "/dev/ptmx";
constexpr unsigned kTerminalMajor = 136;  // Documentation/admin-guide/devices.txt of the kernel
constexpr char kNvidiaGpus[] = "/proc/driver/nvidia/gpus";
constexpr char kDrmDevices[] = "/sys/class/drm";
constexpr int kPatienceMs = 10'000;
constexpr int kMostDevices = 4096;

/// Bits for the ways to open a device that access(2) allows.
constexpr std::byte kRead{1};
constexpr std::byte kWrite{2};

/// Returns the device nodes of NVIDIA GPUs, as /proc/driver/nvidia lists them.
std::map<Uuid, std::string> nvidia_nodes() {
  std::map<Uuid, std::string> nodes;
  std::error_code error;
  for (const auto& gpu : fs::directory_iterator(kNvidiaGpus, error)) {
    std::istringstream lines(procfs::read_text(gpu.path() / "information"));
    std::optional<Uuid> uuid;
    for (std::string line; std::getline(lines, line);) {
      const std::size_t colon = line.find(':');
      const std::size_t value = line.find_first_not_of(" \t", colon + 1);
      if (colon == std::string::npos || value == std::string::npos) continue;
      if (line.starts_with("GPU UUID")) uuid = Uuid::parse(line.substr(value));
      if (uuid && line.starts_with("Device Minor"))
        nodes[*uuid] = "/dev/nvidia" + line.substr(value);
    }
  }
  return nodes;
}

/// Returns the render nodes of AMD GPUs, as sysfs lists them. HIP's UUID is the text of the GPU's
/// identifier. A GPU without one is known only by its path. Partitions of a GPU share one, and only
/// the first is found.
std::map<Uuid, std::string> amd_nodes() {
  std::map<Uuid, std::string> nodes;
  std::error_code error;
  for (const auto& node : fs::directory_iterator(kDrmDevices, error)) {
    const std::string name = node.path().filename();
    std::string id = procfs::read_text(node.path() / "device" / "unique_id");
    if (id.ends_with('\n')) id.pop_back();
    if (name.starts_with("renderD") && id.size() == sizeof(Uuid::bytes))
      nodes[to_uuid(id)] = "/dev/dri/" + name;
  }
  return nodes;
}

/// Returns every device node below /dev, except other users' terminals.
std::vector<proto::Device> devices_here(const std::map<Uuid, std::string>& nodes) {
  std::map<std::string, Uuid> gpus;
  for (const auto& [uuid, node] : nodes) gpus.emplace(node, uuid);
  std::vector<proto::Device> found;
  std::error_code error;
  fs::recursive_directory_iterator at("/dev", error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    if (at->path() == kTerminals) at.disable_recursion_pending();
    const fs::file_type type = at->symlink_status(error).type();
    if (type != fs::file_type::character && type != fs::file_type::block) continue;
    proto::Device& device = found.emplace_back();
    device.set_block(type == fs::file_type::block);
    const auto gpu = gpus.find(at->path());
    if (gpu == gpus.end()) device.set_path(at->path());
    if (gpu != gpus.end()) device.set_gpu_uuid(to_bytes(gpu->second));
  }
  return found;
}

bool is_forbidden(const char* path, int mode) {
  return ::faccessat(AT_FDCWD, path, mode, 0) != 0 && (errno == EPERM || errno == EACCES);
}

/// Joins the groups and tests all paths, with one byte of `allowed` for each. Runs in the forked
/// child of a process with other threads, so it allocates no memory.
[[noreturn]] void probe(const std::vector<UniqueFd>& groups, const std::vector<const char*>& paths,
                        std::span<std::byte> allowed) {
  for (const UniqueFd& group : groups) {
    if (::write(group.get(), "0", 1) != 1) ::_exit(errno);
  }
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!is_forbidden(paths[i], R_OK)) allowed[i] |= kRead;
    if (!is_forbidden(paths[i], W_OK)) allowed[i] |= kWrite;
  }
  ::_exit(0);
}

/// Waits for a child, and kills it if it does not end within kPatienceMs.
Status reap(pid_t child) {
  const UniqueFd ended = procfs::pidfd_of_child(child);
  pollfd entry{ended.get(), POLLIN, 0};
  const bool well = ::poll(&entry, 1, kPatienceMs) == 1;
  if (!well) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!well)
    return Error(Code::kTimeout,
                 "a probe in the control groups of the process did not end within 10 s");
  if (status == 0) return {};
  return Error::from_errno(WIFEXITED(status) ? WEXITSTATUS(status) : EINTR,
                           "cannot join the control groups of the process");
}

std::string path_of(const proto::Device& device, const std::map<Uuid, std::string>& gpus) {
  if (device.gpu_uuid().empty()) return device.path();
  const auto node = gpus.find(to_uuid(device.gpu_uuid()));
  return node == gpus.end() ? "" : node->second;
}

/// Returns whether a root directory has the same device node as this host. No symbolic link is
/// followed.
bool has_node(const UniqueFd& root, const std::string& path) {
  const fs::path node(path);
  const UniqueFd directory = procfs::open_directory(node.parent_path(), root);
  struct stat here {};
  struct stat there {};
  return directory &&
         ::fstatat(directory.get(), node.filename().c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::stat(path.c_str(), &here) == 0 && S_ISCHR(here.st_mode) && S_ISCHR(there.st_mode) &&
         here.st_rdev == there.st_rdev;
}

/// A rule for a device, identified by its numbers.
struct Rule {
  bool block = false;
  unsigned major = 0;
  std::optional<unsigned> minor;
  bool read = false;
  bool write = false;
};

std::vector<Rule> rules_of(const proto::DeviceLimits& limits) {
  const auto gpus = gpu_nodes();
  std::vector<Rule> rules;
  for (const proto::Device& device : limits.allowed()) {
    const std::string path = path_of(device, gpus);
    struct stat node {};
    if (path.empty() || ::stat(path.c_str(), &node) != 0) continue;
    if (device.block() ? !S_ISBLK(node.st_mode) : !S_ISCHR(node.st_mode)) continue;
    rules.push_back(
        {device.block(), major(node.st_rdev), minor(node.st_rdev), device.read(), device.write()});
    if (path == kTerminalMultiplexer)
      rules.push_back({false, kTerminalMajor, std::nullopt, true, true});
  }
  return rules;
}

/// Formats a rule for devices.allow of version 1.
std::string text_of(const Rule& rule) {
  return fmt::format("{} {}:{} {}{}", rule.block ? 'b' : 'c', rule.major,
                     rule.minor ? std::to_string(*rule.minor) : "*", rule.read ? "r" : "",
                     rule.write ? "w" : "");
}

Status limit_v1(const fs::path& group, const std::vector<Rule>& rules) {
  GCR_TRY(write(group / "devices.deny", "a"));
  for (const Rule& rule : rules) GCR_TRY(write(group / "devices.allow", text_of(rule)));
  return {};
}

bpf_insn instruction(int code, int destination, int source, int offset, int immediate) {
  bpf_insn made{};
  made.code = static_cast<std::uint8_t>(code);
  made.dst_reg = static_cast<std::uint8_t>(destination & 0xf);
  made.src_reg = static_cast<std::uint8_t>(source & 0xf);
  made.off = static_cast<std::int16_t>(offset);
  made.imm = immediate;
  return made;
}

/// Returns a program of the type BPF_PROG_TYPE_CGROUP_DEVICE. It receives a bpf_cgroup_dev_ctx
/// (linux/bpf.h) and returns 1 if a rule allows the access.
std::vector<bpf_insn> program_of(const std::vector<Rule>& rules) {
  constexpr int kAnswer = BPF_REG_0;
  constexpr int kContext = BPF_REG_1;
  constexpr int kType = BPF_REG_2;
  constexpr int kWays = BPF_REG_3;
  constexpr int kMajor = BPF_REG_4;
  constexpr int kMinor = BPF_REG_5;
  constexpr int kLoad = BPF_LDX | BPF_W | BPF_MEM;
  constexpr int kSkipUnlessEqual = BPF_JMP | BPF_JNE | BPF_K;
  std::vector<bpf_insn> program{
      instruction(kLoad, kType, kContext, offsetof(bpf_cgroup_dev_ctx, access_type), 0),
      instruction(BPF_ALU64 | BPF_MOV | BPF_X, kWays, kType, 0, 0),
      instruction(BPF_ALU64 | BPF_AND | BPF_K, kType, 0, 0, 0xffff),
      instruction(BPF_ALU64 | BPF_RSH | BPF_K, kWays, 0, 0, 16),
      instruction(kLoad, kMajor, kContext, offsetof(bpf_cgroup_dev_ctx, major), 0),
      instruction(kLoad, kMinor, kContext, offsetof(bpf_cgroup_dev_ctx, minor), 0)};
  for (const Rule& rule : rules) {
    const int forbidden = BPF_DEVCG_ACC_MKNOD | (rule.read ? 0 : BPF_DEVCG_ACC_READ) |
                          (rule.write ? 0 : BPF_DEVCG_ACC_WRITE);
    std::vector<bpf_insn> tests{
        instruction(kSkipUnlessEqual, kType, 0, 0,
                    rule.block ? BPF_DEVCG_DEV_BLOCK : BPF_DEVCG_DEV_CHAR),
        instruction(kSkipUnlessEqual, kMajor, 0, 0, static_cast<int>(rule.major)),
        instruction(BPF_JMP | BPF_JSET | BPF_K, kWays, 0, 0, forbidden)};
    if (rule.minor)
      tests.push_back(instruction(kSkipUnlessEqual, kMinor, 0, 0, static_cast<int>(*rule.minor)));
    // If a test fails, jump over the remaining tests and the two instructions that allow.
    for (std::size_t i = 0; i < tests.size(); ++i)
      tests[i].off = static_cast<std::int16_t>(tests.size() - i + 1);
    program.insert(program.end(), tests.begin(), tests.end());
    program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_K, kAnswer, 0, 0, 1));
    program.push_back(instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0));
  }
  program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_K, kAnswer, 0, 0, 0));
  program.push_back(instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0));
  return program;
}

Status limit_v2(const fs::path& group, const std::vector<Rule>& rules) {
  const std::vector<bpf_insn> program = program_of(rules);
  bpf_attr load{};
  load.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
  load.expected_attach_type = BPF_CGROUP_DEVICE;
  load.insns = reinterpret_cast<std::uintptr_t>(program.data());
  load.insn_cnt = static_cast<std::uint32_t>(program.size());
  load.license = reinterpret_cast<std::uintptr_t>("");
  const UniqueFd loaded(static_cast<int>(::syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load))));
  if (!loaded) return Error::from_errno(errno, "cannot limit devices: BPF_PROG_LOAD");
  const UniqueFd directory(::open(group.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  bpf_attr attach{};
  attach.target_fd = static_cast<std::uint32_t>(directory.get());
  attach.attach_bpf_fd = static_cast<std::uint32_t>(loaded.get());
  attach.attach_type = BPF_CGROUP_DEVICE;
  attach.attach_flags = BPF_F_ALLOW_MULTI;
  if (::syscall(SYS_bpf, BPF_PROG_ATTACH, &attach, sizeof(attach)) == 0) return {};
  return Error::from_errno(errno, "cannot limit devices: BPF_PROG_ATTACH");
}

}  // namespace

std::map<Uuid, std::string> gpu_nodes() {
  std::map<Uuid, std::string> nodes = nvidia_nodes();
  nodes.merge(amd_nodes());
  return nodes;
}

Result<std::vector<UniqueFd>> device_groups_of(const std::vector<Hierarchy>& hierarchies,
                                               pid_t pid) {
  std::vector<UniqueFd> groups;
  for (const Hierarchy& hierarchy : hierarchies) {
    if (!hierarchy.has(kDevices)) continue;
    GCR_ASSIGN(const std::string name, group_of(hierarchy, pid));
    const auto group = hierarchy.directory_of(name);
    if (!group || *group == hierarchy.mount) continue;
    const fs::path path = *group / "cgroup.procs";
    UniqueFd& file = groups.emplace_back(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file) return Error::from_errno(errno, "cannot open " + path.string());
  }
  return groups;
}

Result<std::optional<proto::DeviceLimits>> devices_of(const std::vector<Hierarchy>& hierarchies,
                                                      pid_t pid) {
  GCR_ASSIGN(const std::vector<UniqueFd> groups, device_groups_of(hierarchies, pid));
  if (groups.empty()) return std::nullopt;
  const auto gpus = gpu_nodes();
  std::vector<proto::Device> devices = devices_here(gpus);
  std::vector<std::string> names;
  for (const proto::Device& device : devices) names.push_back(path_of(device, gpus));
  std::vector<const char*> paths;
  for (const std::string& name : names) paths.push_back(name.c_str());
  const std::size_t size = std::max<std::size_t>(paths.size(), 1);
  void* const shared =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return Error::from_errno(errno, "cannot share memory with a child");
  const UniqueMapping answers(shared, size);
  const pid_t child = ::fork();
  if (child < 0) return Error::from_errno(errno, "cannot fork");
  if (child == 0) probe(groups, paths, answers.bytes());
  GCR_TRY(reap(child));
  proto::DeviceLimits limits;
  bool any = false;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::byte ways = answers.bytes()[i];
    any = any || ways != (kRead | kWrite);
    if (ways == std::byte{}) continue;
    devices[i].set_read((ways & kRead) != std::byte{});
    devices[i].set_write((ways & kWrite) != std::byte{});
    *limits.add_allowed() = std::move(devices[i]);
  }
  if (!any) return std::nullopt;
  return limits;
}

Result<std::set<Uuid>> hidden_gpus(const std::vector<Hierarchy>& hierarchies, pid_t pid,
                                   const std::map<Uuid, std::string>& nodes) {
  GCR_ASSIGN(const auto limits, devices_of(hierarchies, pid));
  const auto gpus = gpu_nodes();
  std::set<std::string> allowed;
  if (limits) {
    for (const proto::Device& device : limits->allowed()) {
      if (device.read() && device.write()) allowed.insert(path_of(device, gpus));
    }
  }
  const UniqueFd root = procfs::hold_root(pid);
  std::set<Uuid> hidden;
  for (const auto& [uuid, node] : nodes) {
    if ((limits && !allowed.contains(node)) || !has_node(root, node)) hidden.insert(uuid);
  }
  return hidden;
}

std::optional<proto::DeviceLimits> devices_without(const std::set<Uuid>& gpus) {
  proto::DeviceLimits limits;
  bool any = false;
  for (proto::Device& device : devices_here(gpu_nodes())) {
    const bool is_left_out =
        !device.gpu_uuid().empty() && gpus.contains(to_uuid(device.gpu_uuid()));
    any = any || is_left_out;
    if (is_left_out) continue;
    device.set_read(true);
    device.set_write(true);
    *limits.add_allowed() = std::move(device);
  }
  if (!any) return std::nullopt;
  return limits;
}

Status limit_devices(const Hierarchy& hierarchy, const fs::path& group,
                     const proto::DeviceLimits& limits) {
  if (limits.allowed_size() > kMostDevices)
    return Error(Code::kRefused,
                 fmt::format("{} devices are allowed to the process, more than the maximum of {}",
                             limits.allowed_size(), kMostDevices));
  const std::vector<Rule> rules = rules_of(limits);
  return hierarchy.version == Version::kOne ? limit_v1(group, rules) : limit_v2(group, rules);
}

}  // namespace gcr::cgroups
