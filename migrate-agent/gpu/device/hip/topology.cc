#include "migrate-agent/gpu/device/hip/topology.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "src/base/unique_fd.h"

namespace gcr::device::hip {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = 65'536;  ///< of a file; sysfs has at most a page
constexpr std::size_t kMostText = 64;       ///< bytes of a name or a mode
constexpr std::uint32_t kMostNodes = 4'096;
constexpr std::uint64_t kVisibleVram = 1;  ///< heap types of KFD's memory banks
constexpr std::uint64_t kHiddenVram = 2;

using Properties = std::map<std::string, std::uint64_t, std::less<>>;

Result<std::string> read_file(const fs::path& path) {
  const auto failure = [&] { return Error::from_errno(errno, "cannot read " + path.string()); };
  // O_NONBLOCK: what is not a regular file, such as a FIFO, must not block.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return failure();
  struct stat status;
  if (::fstat(file.get(), &status) != 0) return failure();
  if (!S_ISREG(status.st_mode)) return Error(Code::kIo, path.string() + " is not a file");
  std::string text(kMostBytes, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failure();
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size == kMostBytes) return Error(Code::kIo, path.string() + " is too long");
  text.resize(size);
  return text;
}

/// Its first line, without spaces at its end; empty if there is none that can be shown.
std::string read_text(const fs::path& path) {
  const auto content = read_file(path);
  if (!content) return {};
  std::string line = content->substr(0, content->find('\n'));
  line.erase(line.find_last_not_of(' ') + 1);
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  return line.size() <= kMostText && std::ranges::all_of(line, printable) ? line : std::string();
}

template <class Number>
std::optional<Number> to_number(std::string_view text, int base = 10) {
  Number value{};
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value, base);
  if (error != std::errc() || end != text.end()) return std::nullopt;
  return value;
}

/// Lines of a name and a number. Others are not KFD's; a name that comes twice keeps its first.
Result<Properties> read_properties(const fs::path& path) {
  GCR_ASSIGN(const std::string content, read_file(path));
  Properties found;
  for (std::string_view rest = content; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::size_t space = line.find(' ');
    if (space == line.npos) continue;
    if (const auto value = to_number<std::uint64_t>(line.substr(space + 1))) {
      found.emplace(line.substr(0, space), *value);
    }
  }
  return found;
}

/// The numbers that a directory's entries have for names, ascending.
std::vector<std::uint32_t> numbered_entries(const fs::path& directory) {
  std::vector<std::uint32_t> numbers;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const auto number = to_number<std::uint32_t>(name);
    if (number && *number < kMostNodes) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

/// Numbers of one node, by name; remembers the first that is missing or too large.
class Numbers {
 public:
  explicit Numbers(const Properties& properties) : properties_(properties) {}

  std::uint64_t get(std::string_view name,
                    std::uint64_t most = std::numeric_limits<std::uint32_t>::max()) {
    const auto found = properties_.find(name);
    if (found != properties_.end() && found->second <= most) return found->second;
    if (wrong_.empty()) wrong_ = name;
    return 0;
  }
  std::uint32_t get_32(std::string_view name) { return static_cast<std::uint32_t>(get(name)); }
  std::uint64_t get_or(std::string_view name, std::uint64_t otherwise) const {
    const auto found = properties_.find(name);
    return found == properties_.end() ? otherwise : found->second;
  }
  const std::string& wrong() const { return wrong_; }

 private:
  const Properties& properties_;
  std::string wrong_;
};

struct Version {
  std::uint32_t major, minor, step;
};

/// What CRIU's plugin wants to be equal at the destination, or at least as much, besides what has a
/// name of its own in GpuNode (device_properties_match in its amdgpu_plugin_topology.c).
constexpr std::array kCompared = {"simd_count",
                                  "mem_banks_count",
                                  "caches_count",
                                  "io_links_count",
                                  "max_waves_per_simd",
                                  "lds_size_in_kb",
                                  "num_gws",
                                  "wave_front_size",
                                  "array_count",
                                  "simd_arrays_per_engine",
                                  "cu_per_simd_array",
                                  "simd_per_cu",
                                  "max_slots_scratch_cu",
                                  "num_sdma_engines",
                                  "num_sdma_xgmi_engines",
                                  "num_sdma_queues_per_engine",
                                  "num_cp_queues",
                                  "capability"};

/// KFD's gfx_target_version. None if it is a CPU's, or no version.
std::optional<Version> to_version(std::uint32_t number) {
  const Version version{number / 10'000, number / 100 % 100, number % 100};
  if (version.major == 0 || version.minor > 0xf || version.step > 0xf) return std::nullopt;
  return version;
}

/// As kfd_process_xnack_mode() of the kernel has it.
Xnack xnack_of(const Version& version) {
  if (version.major != 9) return Xnack::kNever;
  const bool is_gfx90a = version.minor == 0 && version.step == 0xa;
  return is_gfx90a || version.minor >= 4 ? Xnack::kPerProcess : Xnack::kWholeHost;
}

std::string pci_address(std::uint32_t domain, std::uint32_t location) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, location >> 8, location >> 3 & 0x1f,
                     location & 7);
}

/// Of a partition, KFD puts its number in the place of the function of the GPU's PCI address.
void find_board(GpuNode& gpu, const fs::path& devices, std::uint32_t domain,
                std::uint32_t location) {
  const auto is_gpu_at = [&](const std::string& address) {
    const fs::path device = devices / address;
    return read_text(device / "vendor") == fmt::format("0x{:04x}", gpu.vendor_id) &&
           read_text(device / "device") == fmt::format("0x{:04x}", gpu.device_id);
  };
  gpu.pci_address = pci_address(domain, location);
  const std::string whole = pci_address(domain, location & ~7u);
  if (!is_gpu_at(gpu.pci_address) && is_gpu_at(whole)) {
    gpu.pci_address = whole;
    gpu.partition = location & 7;
  }
  const fs::path board = devices / gpu.pci_address;
  gpu.product = read_text(board / "product_name");
  gpu.compute_partitioning = read_text(board / "current_compute_partition");
  gpu.memory_partitioning = read_text(board / "current_memory_partition");
}

Result<std::uint64_t> read_vram(const fs::path& banks) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t bank : numbered_entries(banks)) {
    GCR_ASSIGN(const Properties properties,
               read_properties(banks / std::to_string(bank) / "properties"));
    const Numbers numbers(properties);
    const std::uint64_t heap = numbers.get_or("heap_type", 0);
    if (heap != kVisibleVram && heap != kHiddenVram) continue;
    if (__builtin_add_overflow(bytes, numbers.get_or("size_in_bytes", 0), &bytes)) {
      return Error(Code::kUnsupported, banks.string() + " has more VRAM than there can be");
    }
  }
  return bytes;
}

Result<GpuNode> read_gpu(const fs::path& sys, std::uint32_t node, std::uint32_t gpu_id,
                         const fs::path& directory) {
  GCR_ASSIGN(const Properties properties, read_properties(directory / "properties"));
  Numbers numbers(properties);
  GpuNode gpu;
  gpu.node = node;
  gpu.gpu_id = gpu_id;
  gpu.render_minor = numbers.get_32("drm_render_minor");
  gpu.vendor_id = numbers.get_32("vendor_id");
  gpu.device_id = numbers.get_32("device_id");
  gpu.firmware = numbers.get("fw_version");
  gpu.dma_firmware = numbers.get("sdma_fw_version");
  gpu.unique_id = numbers.get_or("unique_id", 0);
  const std::uint32_t domain = numbers.get_32("domain");
  const auto location = static_cast<std::uint32_t>(numbers.get("location_id", 0xffff));
  const auto version = to_version(numbers.get_32("gfx_target_version"));
  if (!numbers.wrong().empty() || !version) {
    return Error(Code::kUnsupported,
                 fmt::format("{} has no valid {}", (directory / "properties").string(),
                             numbers.wrong().empty() ? "gfx_target_version" : numbers.wrong()));
  }
  gpu.compute_dies = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      numbers.get_or("num_xcc", 1), std::numeric_limits<std::uint32_t>::max()));
  for (const char* const name : kCompared) {
    if (const auto found = properties.find(name); found != properties.end()) {
      gpu.properties.insert(*found);
    }
  }
  gpu.architecture = fmt::format("gfx{}{:x}{:x}", version->major, version->minor, version->step);
  gpu.xnack = xnack_of(*version);
  GCR_ASSIGN(gpu.vram_bytes, read_vram(directory / "mem_banks"));
  find_board(gpu, sys / "bus/pci/devices", domain, location);
  return gpu;
}

}  // namespace

std::string GpuNode::identity() const {
  const std::string whole =
      unique_id != 0 ? fmt::format("{:016x}", unique_id) : "pci-" + pci_address;
  return partition == 0 ? whole : fmt::format("{}/{}", whole, partition);
}

Result<Topology> read_topology(const fs::path& sys) {
  const fs::path module = sys / "module/amdgpu";
  const fs::path nodes = sys / "class/kfd/kfd/topology/nodes";
  Topology topology;
  topology.driver_release = read_text(module / "version");
  topology.noretry = to_number<int>(read_text(module / "parameters/noretry")).value_or(-1);
  topology.saves_waves = read_text(module / "parameters/cwsr_enable") != "0";
  for (const std::uint32_t node : numbered_entries(nodes)) {
    const fs::path directory = nodes / std::to_string(node);
    const auto id_text = read_file(directory / "gpu_id");
    if (!id_text && id_text.error().code() == Code::kPermissionDenied) {
      ++topology.hidden;
      continue;
    }
    if (!id_text) return id_text.error();
    const auto gpu_id =
        to_number<std::uint32_t>(std::string_view(*id_text).substr(0, id_text->find('\n')));
    if (!gpu_id) {
      return Error(Code::kUnsupported, (directory / "gpu_id").string() + " has no number");
    }
    if (*gpu_id == 0) continue;  // a CPU
    const auto same_id = [&](const GpuNode& gpu) { return gpu.gpu_id == *gpu_id; };
    if (std::ranges::any_of(topology.gpus, same_id)) {
      return Error(Code::kUnsupported, fmt::format("two GPUs have the gpu_id {}", *gpu_id));
    }
    GCR_ASSIGN(GpuNode gpu, read_gpu(sys, node, *gpu_id, directory));
    topology.gpus.push_back(std::move(gpu));
  }
  return topology;
}

const GpuNode* find_node(const Topology& topology, const GpuInfo& gpu) {
  const std::string digits(gpu.uuid.bytes.begin(), gpu.uuid.bytes.end());
  const auto id = to_number<std::uint64_t>(digits, 16);
  const auto has_id = [&](const GpuNode& node) { return id && node.unique_id == *id; };
  if (std::ranges::count_if(topology.gpus, has_id) == 1) {
    return &*std::ranges::find_if(topology.gpus, has_id);
  }
  // HIP writes the number of a partition as the function of the address, as KFD does.
  for (const GpuNode& node : topology.gpus) {
    const std::string whole = node.pci_address.substr(0, node.pci_address.find('.'));
    const std::string place =
        node.partition == 0 ? node.pci_address : fmt::format("{}.{:x}", whole, node.partition);
    if (place == gpu.pci_address) return &node;
  }
  return nullptr;
}

std::optional<std::uint64_t> free_vram(const GpuNode& gpu, const fs::path& sysfs) {
  const fs::path board = sysfs / "bus/pci/devices" / gpu.pci_address;
  const auto total = to_number<std::uint64_t>(read_text(board / "mem_info_vram_total"));
  const auto used = to_number<std::uint64_t>(read_text(board / "mem_info_vram_used"));
  if (!total || !used) return std::nullopt;
  return *total - std::min(*total, *used);
}

std::optional<std::vector<int>> queues_of(pid_t pid, const fs::path& sysfs) {
  const fs::path process = sysfs / "class/kfd/kfd/proc" / std::to_string(pid);
  std::error_code error;
  if (!fs::is_directory(process, error)) return std::nullopt;
  std::vector<int> kinds;
  for (const std::uint32_t queue : numbered_entries(process / "queues")) {
    const auto kind =
        to_number<int>(read_text(process / "queues" / std::to_string(queue) / "type"));
    if (kind) kinds.push_back(*kind);
  }
  return kinds;
}

}  // namespace gcr::device::hip
