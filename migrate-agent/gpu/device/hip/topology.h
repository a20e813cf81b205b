// AMD GPUs as the kernel describes them in sysfs (docs/hip.md): what two hosts compare before a
// process moves from one to the other. Needs no ROCm, opens no GPU, and may be called from any
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/gpu/device/device.h"
#include "src/base/result.h"

namespace gcr::device::hip {

/// Whether page faults of a GPU can be retried (XNACK).
enum class Xnack : std::uint8_t {
  kNever,
  kWholeHost,   ///< as amdgpu's parameter `noretry` says
  kPerProcess,  ///< as HSA_XNACK says in a process's environment
};

/// A GPU, or one partition of it: a node of KFD, the compute part of amdgpu.
struct GpuNode {
  std::uint32_t node = 0;            ///< KFD's number
  std::uint32_t gpu_id = 0;          ///< KFD's name on this host, never 0
  std::uint32_t render_minor = 0;    ///< /dev/dri/renderD<render_minor>
  std::string pci_address;           ///< "0000:c1:00.0"; of a partition, that of the whole GPU
  std::uint64_t unique_id = 0;       ///< 0: it has none. The same for all partitions of a GPU.
  std::uint32_t partition = 0;       ///< its number in its GPU
  std::uint32_t vendor_id = 0;       ///< PCI's
  std::uint32_t device_id = 0;       ///< PCI's
  std::string architecture;          ///< "gfx942"
  std::string product;               ///< empty if the board does not say
  std::uint64_t vram_bytes = 0;      ///< 0: it uses the host's memory
  std::string compute_partitioning;  ///< of its GPU, "SPX", "CPX"; empty: it cannot be divided
  std::string memory_partitioning;   ///< of its GPU, "NPS1"; empty: the same
  std::uint32_t compute_dies = 1;    ///< XCCs
  std::uint64_t firmware = 0;
  std::uint64_t dma_firmware = 0;
  Xnack xnack = Xnack::kNever;
  std::map<std::string, std::uint64_t> properties;  ///< others that CRIU's plugin compares

  /// A name that stays the same from boot to boot: "7cf529dea4b33bad"; for a partition after the
  /// first "7cf529dea4b33bad/2". Without a unique id it is the PCI address: "pci-0000:03:00.0".
  std::string identity() const;
};

struct Topology {
  std::string driver_release;  ///< of the amdgpu that AMD releases; empty: the kernel has its own
  int noretry = -1;            ///< amdgpu's parameter; -1: as the driver chooses for each GPU
  bool saves_waves = true;     ///< amdgpu's parameter cwsr_enable
  std::uint32_t hidden = 0;    ///< nodes that this process's control group may not use
  std::vector<GpuNode> gpus;   ///< by node
};

/// Reads the sysfs that is mounted at `sysfs`. A host without AMD GPUs gives an empty list.
/// kUnsupported if a GPU's description is incomplete or contradicts itself; also errors of reading.
/// Text that is too long or not printable counts as missing.
Result<Topology> read_topology(const std::filesystem::path& sysfs = "/sys");

/// The node of a GPU that HIP has: by its unique id, or by its place on the bus where it has none
/// or shares it with other partitions. Null if there is none.
const GpuNode* find_node(const Topology& topology, const GpuInfo& gpu);

/// VRAM in bytes that is free now on a GPU with all its partitions; nothing if sysfs does not tell.
std::optional<std::uint64_t> free_vram(const GpuNode& gpu,
                                       const std::filesystem::path& sysfs = "/sys");

/// Kinds of the queues that a process has, as KFD numbers them; nothing if KFD does not know the
/// process. `pid` is of the host's first PID namespace.
std::optional<std::vector<int>> queues_of(pid_t pid, const std::filesystem::path& sysfs = "/sys");

/// The kind of a queue on a DMA engine that the process has chosen (KFD_QUEUE_TYPE_SDMA_BY_ENG_ID).
inline constexpr int kQueueOfChosenEngine = 4;

}  // namespace gcr::device::hip
