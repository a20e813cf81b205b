#include "migrate-agent/process/inspect/sharing.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/files.h"
#include "src/base/units.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;

constexpr char kPreloadLibrary[] = "libgcr-preload.so";

using procfs::FileId;

/// The first outsider but ourselves that maps one of these, for each of them.
std::map<FileId, pid_t> outside_mappers(const Together& together,
                                        const std::map<FileId, std::string>& shared) {
  std::map<FileId, pid_t> mappers;
  for (const pid_t other : procfs::processes()) {
    if (together.contains(other) || other == ::getpid()) continue;
    for (const Mapping& mapping : named_mappings(other)) {
      const FileId id{mapping.device, mapping.inode};
      if (shared.contains(id)) mappers.emplace(id, other);
    }
  }
  return mappers;
}

/// Memory that never had a name in a file system.
bool is_nameless_memory(const Mapping& mapping) {
  return mapping.path.starts_with("/memfd:") || mapping.path.starts_with("/dev/zero") ||
         mapping.path.starts_with("/anon_hugepage");
}

bool is_memory_alone(const Mapping& mapping) {
  return mapping.deleted || is_nameless_memory(mapping);
}

/// The kernel's own link to a file that is mapped.
std::string link_of(pid_t pid, const Mapping& mapping) {
  return fmt::format("/proc/{}/map_files/{}", pid, mapping.range);
}

/// Nothing if it cannot be told.
struct stat status_of(pid_t pid, const Mapping& mapping) {
  struct stat status {};
  const std::string link = link_of(pid, mapping);
  const bool is_it = ::stat(link.c_str(), &status) == 0 && status.st_ino == mapping.inode;
  if (!is_it) status = {};
  return status;
}

bool is_on_tmpfs(pid_t pid, const Mapping& mapping) {
  struct statfs system {};
  return ::statfs(link_of(pid, mapping).c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC;
}

/// A file in memory that was opened by a name that is gone, and still has others: it belongs to the
/// job as a whole (migrate-agent/process/memory_files).
bool has_other_names(pid_t pid, const Mapping& mapping) {
  return status_of(pid, mapping).st_nlink != 0 && is_on_tmpfs(pid, mapping);
}

void look_at_deleted(pid_t pid, const Mapping& mapping, Inspection& inspection) {
  if (is_nameless_memory(mapping)) return;
  const struct stat status = status_of(pid, mapping);
  const std::uint64_t bytes = static_cast<std::uint64_t>(status.st_blocks) * 512;
  const std::string what = mapping.path + ", which is mapped, is deleted and ";
  if (status.st_nlink != 0) {
    if (is_on_tmpfs(pid, mapping)) return;
    inspection.findings.add(findings::kDeletedFile, what + "still exists under another name");
  } else if (bytes > kDeletedFileLimitBytes) {
    inspection.findings.add(findings::kDeletedFile,
                            fmt::format("{}has {}; at most {} can be moved", what,
                                        format_bytes(bytes), format_bytes(kDeletedFileLimitBytes)));
  }
}

void look_at_file(pid_t pid, const Mapping& mapping, Inspection& inspection) {
  const std::string real_path = fmt::format("/proc/{}/root{}", pid, mapping.path);
  struct stat status {};
  if (::stat(real_path.c_str(), &status) == 0 &&
      (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode))) {
    inspection.findings.add_object(findings::kDevice,
                                   "it has the device " + mapping.path + " mapped", mapping.path);
  }
}

bool is_preload_library(const Mapping& mapping) {
  return fs::path(mapping.path).filename().string().starts_with(kPreloadLibrary);
}

/// In an IPC namespace of the job's own, System V objects move with the namespace.
void look_at_segment(pid_t pid, const Mapping& mapping, const Together& together,
                     Inspection& inspection) {
  if (procfs::namespace_link(pid, "ipc") != procfs::namespace_link(together.in_place_of(), "ipc")) {
    return;
  }
  inspection.findings.add(
      findings::kSystemV,
      fmt::format("it has System V shared memory attached (id {}) in the {}'s IPC namespace",
                  mapping.inode, together.container() ? "container" : "host"));
}

void look_at(pid_t pid, const Mapping& mapping, const Together& together, Inspection& inspection) {
  if (is_preload_library(mapping)) inspection.facts.set_under_preload(true);
  if (mapping.path.starts_with("/SYSV")) {
    look_at_segment(pid, mapping, together, inspection);
  } else if (mapping.path.starts_with("/secretmem")) {
    inspection.findings.add(findings::kKernelObject, "it has secret memory (memfd_secret)");
  } else if (is_memory_alone(mapping)) {
    look_at_deleted(pid, mapping, inspection);
  } else {
    look_at_file(pid, mapping, inspection);
  }
}

}  // namespace

bool is_driver_file(std::string_view path) {
  constexpr std::array<std::string_view, 3> kFiles = {"/dev/nvidia", "/dev/kfd",
                                                      "/dev/dri/renderD"};
  return std::ranges::any_of(kFiles, [&](std::string_view file) { return path.starts_with(file); });
}

bool is_under_preload(pid_t pid) {
  return std::ranges::any_of(named_mappings(pid), is_preload_library);
}

bool has_cuda_context(pid_t pid) {
  constexpr std::string_view kUnifiedMemory = "/dev/nvidia-uvm";
  const auto mappings = named_mappings(pid);
  const auto descriptors = procfs::descriptor_links(pid);
  return std::ranges::any_of(
             mappings, [&](const auto& one) { return one.path.starts_with(kUnifiedMemory); }) ||
         std::ranges::any_of(descriptors,
                             [&](const auto& one) { return one.link.starts_with(kUnifiedMemory); });
}

std::size_t unexplained_descriptors(pid_t pid, std::string_view device) {
  constexpr std::string_view kOthers[] = {
      "libnvidia-ml.so",          "libnvcuvid.so", "libnvidia-encode.so", "libnvidia-opencl.so",
      "libnvidia-opticalflow.so", "libnvoptix.so", "libEGL_nvidia.so",    "libGLX_nvidia.so"};
  const auto links = procfs::descriptor_links(pid);
  const auto open =
      static_cast<std::size_t>(std::ranges::count(links, device, &procfs::DescriptorLink::link));
  if (open <= 1) return 0;
  std::set<std::string_view> loaded;
  for (const Mapping& mapping : named_mappings(pid)) {
    const std::string file = fs::path(mapping.path).filename().string();
    const auto other = std::ranges::find_if(
        kOthers, [&](std::string_view name) { return file.starts_with(name); });
    if (other != std::end(kOthers)) loaded.insert(*other);
  }
  return open - std::min(open, 1 + loaded.size());
}

std::optional<std::string> driver_file_in_use(pid_t pid) {
  for (const Mapping& mapping : named_mappings(pid)) {
    if (is_driver_file(mapping.path)) return mapping.path + " mapped";
  }
  for (const auto& [number, link] : procfs::descriptor_links(pid)) {
    if (is_driver_file(link)) return link + " open as descriptor " + std::to_string(number);
  }
  return std::nullopt;
}

void inspect_mappings(pid_t pid, const Together& together, Inspection& inspection) {
  std::map<FileId, std::string> shared;
  for (const Mapping& mapping : named_mappings(pid)) {
    if (is_driver_file(mapping.path)) continue;
    look_at(pid, mapping, together, inspection);
    if (mapping.shared && is_memory_alone(mapping) && !mapping.path.starts_with("/SYSV") &&
        !has_other_names(pid, mapping)) {
      shared.emplace(FileId{mapping.device, mapping.inode}, mapping.path);
    }
  }
  if (shared.empty()) return;
  for (const auto& [id, other] : outside_mappers(together, shared)) {
    inspection.findings.add(
        findings::kSharedMemory,
        "it shares the memory " + shared.at(id) + " with process " + describe_process(other));
  }
}

}  // namespace gcr::process
