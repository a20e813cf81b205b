#include "migrate-agent/criu/launch/plugin.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;

/// The symbol of a plugin's descriptor: name, init, exit, version, max_hooks (criu-plugin.h).
constexpr char kDescriptor[] = "CR_PLUGIN_DESC";
constexpr std::uint64_t kMaxHooksOffset = 28;
constexpr std::size_t kMaxSections = 1024;
constexpr std::size_t kMaxSymbols = 65536;

/// How many hooks releases of CRIU have: each from its release until the next one.
struct Hooks {
  std::uint32_t release;
  std::uint32_t count;
};
constexpr Hooks kHooks[] = {{31700, 10}, {40000, 12}, {40200, 13}, {40300, 15}};

template <class T>
bool read_at(int fd, std::uint64_t offset, T& into) {
  return offset <= INT64_MAX &&
         ::pread(fd, &into, sizeof(into), static_cast<off_t>(offset)) == sizeof(into);
}

/// Where the file has what is loaded at `address`.
std::optional<std::uint64_t> offset_of(int fd, const Elf64_Ehdr& file, std::uint64_t address) {
  for (std::uint64_t i = 0; i < file.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read_at(fd, file.e_phoff + i * sizeof(segment), segment)) return {};
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz) {
      return segment.p_offset + (address - segment.p_vaddr);
    }
  }
  return {};
}

/// The address of the descriptor, among the symbols of one section.
std::optional<std::uint64_t> descriptor_in(int fd, const Elf64_Shdr& symbols,
                                           const Elf64_Shdr& names) {
  const std::size_t count = std::min<std::size_t>(symbols.sh_size / sizeof(Elf64_Sym), kMaxSymbols);
  for (std::size_t i = 0; i < count; ++i) {
    Elf64_Sym symbol;
    char name[sizeof(kDescriptor)];
    if (!read_at(fd, symbols.sh_offset + i * sizeof(symbol), symbol)) return {};
    if (symbol.st_shndx == SHN_UNDEF || !read_at(fd, names.sh_offset + symbol.st_name, name)) {
      continue;
    }
    if (std::memcmp(name, kDescriptor, sizeof(name)) == 0) return symbol.st_value;
  }
  return {};
}

/// The number of hooks for which a plugin was built, without running any of it.
std::optional<std::uint32_t> hooks_of(int fd) {
  Elf64_Ehdr file;
  if (!read_at(fd, 0, file) || std::memcmp(file.e_ident, ELFMAG, SELFMAG) != 0 ||
      file.e_ident[EI_CLASS] != ELFCLASS64 || file.e_phentsize != sizeof(Elf64_Phdr) ||
      file.e_shentsize != sizeof(Elf64_Shdr)) {
    return {};
  }
  for (std::uint64_t i = 0; i < std::min<std::size_t>(file.e_shnum, kMaxSections); ++i) {
    Elf64_Shdr section;
    Elf64_Shdr names;
    if (!read_at(fd, file.e_shoff + i * sizeof(section), section)) return {};
    if (section.sh_type != SHT_DYNSYM || section.sh_link >= file.e_shnum ||
        !read_at(fd, file.e_shoff + section.sh_link * sizeof(names), names)) {
      continue;
    }
    const auto address = descriptor_in(fd, section, names);
    const auto offset = address ? offset_of(fd, file, *address) : std::nullopt;
    std::uint32_t hooks = 0;
    if (offset && read_at(fd, *offset + kMaxHooksOffset, hooks)) return hooks;
  }
  return {};
}

std::string release_name(std::uint32_t version) {
  return fmt::format("{}.{}", version / 10000, version / 100 % 100);
}

/// The first release with so many hooks.
std::string release_with(std::uint32_t hooks) {
  for (const Hooks& one : kHooks) {
    if (one.count == hooks) return "CRIU " + release_name(one.release);
  }
  return "no known release";
}

/// Of a release that is newer than all that are known, only the least is.
bool fits(std::uint32_t hooks, std::uint32_t criu_version) {
  const Hooks* found = nullptr;
  for (const Hooks& one : kHooks) {
    if (criu_version >= one.release) found = &one;
  }
  if (found == nullptr) return false;
  const bool is_newest = found == std::end(kHooks) - 1;
  const bool is_known = !is_newest || criu_version / 100 == found->release / 100;
  return is_known ? hooks == found->count : hooks >= found->count;
}

/// Task and text of a log's line that a plugin has written: "(00.012345)     17: amdgpu_plugin:
/// TEXT". The number is that of the restored task, which CRIU itself leaves out.
std::optional<std::pair<std::string, std::string>> line_of(const std::string& line,
                                                           const std::string& name) {
  const std::size_t time = line.find(") ");
  const std::size_t at = line.find(name + ": ");
  if (!line.starts_with('(') || time == std::string::npos || at == std::string::npos || at < time) {
    return {};
  }
  const std::string task = line.substr(time + 2, at - time - 2);
  if (task.find_first_not_of(" 0123456789:") != std::string::npos) return {};
  return std::pair(task, line.substr(at + name.size() + 2));
}

/// "GPU: 0x1234 -> 0x5678"
std::optional<std::pair<std::uint32_t, std::uint32_t>> pair_in(std::string_view text) {
  constexpr std::string_view kGpu = "GPU: 0x";
  constexpr std::string_view kArrow = " -> 0x";
  if (!text.starts_with(kGpu)) return {};
  text.remove_prefix(kGpu.size());
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  const auto first = std::from_chars(text.data(), text.data() + text.size(), from, 16);
  text.remove_prefix(first.ptr - text.data());
  if (first.ec != std::errc() || !text.starts_with(kArrow)) return {};
  text.remove_prefix(kArrow.size());
  const auto second = std::from_chars(text.data(), text.data() + text.size(), to, 16);
  if (second.ec != std::errc() || second.ptr != text.data() + text.size()) return {};
  return std::pair(from, to);
}

}  // namespace

std::string plugin_for(pid_t process) {
  const bool uses_hip = procfs::uses_kfd(process) || procfs::has_library(process, "libamdhip64.so");
  return uses_hip ? std::string(kAmdGpuPlugin) : "";
}

Result<Plugin> Plugin::open(const fs::path& file, std::uint32_t criu_version) {
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return Error::from_errno(errno, "cannot open CRIU's plugin " + file.string());
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != 0 ||
      (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Error(Code::kRefused, "others than root may write to CRIU's plugin " + file.string());
  }
  const auto hooks = hooks_of(fd.get());
  if (!hooks) return Error(Code::kUnsupported, file.string() + " is no CRIU plugin");
  if (!fits(*hooks, criu_version)) {
    return Error(
        Code::kUnsupported,
        fmt::format("CRIU's plugin {} has {} hooks, as in {}; CRIU here is {}", file.string(),
                    *hooks, release_with(*hooks), release_name(criu_version)));
  }
  return Plugin(std::move(fd), file.stem().string());
}

std::vector<PluginMap> plugin_maps(const fs::path& log, const std::string& name) {
  std::map<std::string, PluginMap> last;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    const auto said = line_of(line, name);
    if (!said) continue;
    const auto& [task, text] = *said;
    if (text.starts_with("===Maps===")) last[task].clear();
    const auto pair = pair_in(text);
    const auto map = last.find(task);
    if (pair && map != last.end()) map->second[pair->first] = pair->second;
  }
  std::vector<PluginMap> maps;
  for (auto& [task, map] : last) maps.push_back(std::move(map));
  return maps;
}

std::string plugin_error(const fs::path& log, const std::string& name) {
  // The amdgpu plugin takes an old errno for an error of a variable's value.
  constexpr std::string_view kIgnored = "Ignoring invalid value";
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find("Error (");
    if (at == std::string::npos || line.find(kIgnored) != std::string::npos) continue;
    const std::size_t place_end = line.find("): ", at);
    if (place_end == std::string::npos) continue;
    if (line.compare(place_end + 3, name.size() + 2, name + ": ") == 0) return line.substr(at);
  }
  return "";
}

Status check_plugin_maps(std::span<const PluginMap> maps, const PluginMap& planned) {
  if (maps.empty() && !planned.empty()) {
    return Error(Code::kInternal, "CRIU's plugin does not say which GPU it has put in which place");
  }
  for (const PluginMap& map : maps) {
    for (const auto& [from, to] : map) {
      const auto plan = planned.find(from);
      if (plan != planned.end() && plan->second == to) continue;
      const std::string instead = plan == planned.end() ? std::string("it has no place")
                                                        : fmt::format("{:#06x}", plan->second);
      return Error(
          Code::kInternal,
          fmt::format("CRIU's plugin has put GPU {:#06x} of the source on {:#06x}; planned "
                      "was {}",
                      from, to, instead));
    }
  }
  return {};
}

}  // namespace gcr::criu
