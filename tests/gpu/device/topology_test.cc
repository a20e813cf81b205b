// Sysfs trees as the kernel creates them for GPUs of several kinds, and hostile ones.
#include "migrate-agent/gpu/device/hip/topology.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/sysfs_tree.h"

namespace {

namespace fs = std::filesystem;
using gcr::Code;
using gcr::device::hip::GpuNode;
using gcr::device::hip::queues_of;
using gcr::device::hip::read_topology;
using gcr::device::hip::Topology;
using gcr::device::hip::Xnack;

class TopologyTest : public testing::Test, protected gcr::SysfsTree {
 protected:
  Topology read() const {
    auto topology = read_topology(path());
    EXPECT_TRUE(topology) << topology.error().message();
    return topology ? *topology : Topology();
  }

  /// The refusal of a host whose only GPU has this file.
  gcr::Error refusal_with(const std::string& name, const std::string& content) const {
    add_gpu({});
    write(node_path(1) + name, content);
    auto topology = read_topology(path());
    if (topology) {
      ADD_FAILURE() << name << " was accepted";
      return {Code::kInternal, ""};
    }
    return topology.error();
  }
};

TEST_F(TopologyTest, HostWithoutAmdGpusHasNone) {
  EXPECT_TRUE(read().gpus.empty());
  add_cpu(0);
  const Topology topology = read();
  EXPECT_TRUE(topology.gpus.empty());
  EXPECT_EQ(topology.hidden, 0u);
  EXPECT_EQ(topology.driver_release, "");
  EXPECT_EQ(topology.noretry, -1);
}

TEST_F(TopologyTest, ConsumerGpuHasNoPartitions) {
  add_cpu(0);
  add_gpu({.gpu_id = 47'056,
           .gfx_target_version = "110000",
           .device_id = 0x744c,
           .location_id = 0x8600,
           .render_minor = 129,
           .unique_id = 11'673'270'660'693'242'239ull,
           .vram_bytes = 25'753'026'560});
  add_board("0000:86:00.0", 0x744c, {});
  const Topology topology = read();
  ASSERT_EQ(topology.gpus.size(), 1u);
  const GpuNode& gpu = topology.gpus[0];
  EXPECT_EQ(gpu.node, 1u);
  EXPECT_EQ(gpu.gpu_id, 47'056u);
  EXPECT_EQ(gpu.render_minor, 129u);
  EXPECT_EQ(gpu.identity(), "a1ffc9d1799c317f");
  EXPECT_EQ(gpu.pci_address, "0000:86:00.0");
  EXPECT_EQ(gpu.architecture, "gfx1100");
  EXPECT_EQ(gpu.vendor_id, 0x1002u);
  EXPECT_EQ(gpu.device_id, 0x744cu);
  EXPECT_EQ(gpu.product, "");
  EXPECT_EQ(gpu.vram_bytes, 25'753'026'560u);
  EXPECT_EQ(gpu.compute_partitioning, "");
  EXPECT_EQ(gpu.memory_partitioning, "");
  EXPECT_EQ(gpu.compute_dies, 1u);
  EXPECT_EQ(gpu.firmware, 177u);
  EXPECT_EQ(gpu.dma_firmware, 22u);
  EXPECT_EQ(gpu.xnack, Xnack::kNever);
}

TEST_F(TopologyTest, HalvesOfAnMi250xAreSeparateGpus) {
  write("module/amdgpu/version", "6.12.12\n");
  write("module/amdgpu/parameters/noretry", "1\n");
  add_cpu(0);
  for (unsigned half = 0; half < 2; ++half) {
    add_gpu({.number = 10 - half,  // directory order is not node order
             .gpu_id = 100 + half,
             .gfx_target_version = "90010",
             .device_id = 0x740c,
             .location_id = 0xc100 + half * 0x500,
             .render_minor = 128 + half,
             .unique_id = 0xaa0000 + half,
             .vram_bytes = std::uint64_t{64} << 30});
    add_board(fmt::format("0000:{:02x}:00.0", 0xc1 + half * 5), 0x740c,
              {{"product_name", "AMD INSTINCT MI250X\n"}});
  }
  const Topology topology = read();
  EXPECT_EQ(topology.driver_release, "6.12.12");
  EXPECT_EQ(topology.noretry, 1);
  ASSERT_EQ(topology.gpus.size(), 2u);
  EXPECT_EQ(topology.gpus[0].node, 9u);
  EXPECT_EQ(topology.gpus[0].identity(), "0000000000aa0001");
  EXPECT_EQ(topology.gpus[0].pci_address, "0000:c6:00.0");
  EXPECT_EQ(topology.gpus[1].node, 10u);
  EXPECT_EQ(topology.gpus[1].identity(), "0000000000aa0000");
  for (const GpuNode& gpu : topology.gpus) {
    EXPECT_EQ(gpu.architecture, "gfx90a");
    EXPECT_EQ(gpu.product, "AMD INSTINCT MI250X");
    EXPECT_EQ(gpu.partition, 0u);
    EXPECT_EQ(gpu.xnack, Xnack::kPerProcess);
  }
}

TEST_F(TopologyTest, PartitionsOfAnMi300xShareOneBoard) {
  for (unsigned partition = 0; partition < 8; ++partition) {
    add_gpu({.number = 2 + partition,
             .gpu_id = 5'000 + partition,
             .location_id = 0x0500 | partition,
             .render_minor = 128 + partition,
             .unique_id = 0x21b6d61638a86f8c,
             .vram_bytes = std::uint64_t{24} << 30});
  }
  add_board("0000:05:00.0", 0x74a1,
            {{"product_name", "AMD Instinct MI300X OAM\n"},
             {"current_compute_partition", "CPX\n"},
             {"current_memory_partition", "NPS4\n"}});
  const Topology topology = read();
  ASSERT_EQ(topology.gpus.size(), 8u);
  for (unsigned partition = 0; partition < 8; ++partition) {
    const GpuNode& gpu = topology.gpus[partition];
    EXPECT_EQ(gpu.partition, partition);
    EXPECT_EQ(gpu.pci_address, "0000:05:00.0");
    EXPECT_EQ(gpu.architecture, "gfx942");
    EXPECT_EQ(gpu.compute_partitioning, "CPX");
    EXPECT_EQ(gpu.memory_partitioning, "NPS4");
    EXPECT_EQ(gpu.product, "AMD Instinct MI300X OAM");
    EXPECT_EQ(gpu.vram_bytes, std::uint64_t{24} << 30);
  }
  EXPECT_EQ(topology.gpus[0].identity(), "21b6d61638a86f8c");
  EXPECT_EQ(topology.gpus[3].identity(), "21b6d61638a86f8c/3");
}

TEST_F(TopologyTest, SrIovFunctionIsNoPartition) {
  add_gpu({.device_id = 0x74b5, .location_id = 0x0502, .unique_id = 7, .num_xcc = 8});
  add_board("0000:05:00.0", 0x1234, {});
  add_board("0000:05:00.2", 0x74b5, {});
  const Topology topology = read();
  ASSERT_EQ(topology.gpus.size(), 1u);
  EXPECT_EQ(topology.gpus[0].pci_address, "0000:05:00.2");
  EXPECT_EQ(topology.gpus[0].partition, 0u);
  EXPECT_EQ(topology.gpus[0].compute_dies, 8u);
}

TEST_F(TopologyTest, GpuWithoutUniqueIdIsNamedByPciAddress) {
  add_gpu({.gfx_target_version = "90008", .location_id = 0x0300});
  const Topology topology = read();
  ASSERT_EQ(topology.gpus.size(), 1u);
  EXPECT_EQ(topology.gpus[0].identity(), "pci-0000:03:00.0");
  EXPECT_EQ(topology.gpus[0].xnack, Xnack::kWholeHost);
}

TEST_F(TopologyTest, OnlyBanksOfVramCount) {
  add_gpu({.vram_bytes = 4096});
  write(node_path(1) + "mem_banks/1/properties", "heap_type 2\nsize_in_bytes 8192\n");
  write(node_path(1) + "mem_banks/2/properties", "heap_type 0\nsize_in_bytes 16384\n");
  EXPECT_EQ(read().gpus.at(0).vram_bytes, 12'288u);
  fs::remove_all(path() / node_path(1) / "mem_banks");
  EXPECT_EQ(read().gpus.at(0).vram_bytes, 0u);
}

TEST_F(TopologyTest, UnreadableNodeIsHidden) {
  add_gpu({});
  add_gpu({.number = 2, .gpu_id = 2});
  fs::permissions(path() / node_path(1) / "gpu_id", fs::perms::none);
  // The kernel refuses the read to every caller; a file's mode does not stop root.
  const uid_t before = ::geteuid();
  constexpr uid_t kUnprivileged = 65'534;
  if (before == 0) {
    ASSERT_EQ(::seteuid(kUnprivileged), 0);
  }
  const auto topology = read_topology(path());
  ASSERT_EQ(::seteuid(before), 0);
  ASSERT_TRUE(topology) << topology.error().message();
  EXPECT_EQ(topology->hidden, 1u);
  ASSERT_EQ(topology->gpus.size(), 1u);
  EXPECT_EQ(topology->gpus[0].node, 2u);
}

TEST_F(TopologyTest, OtherEntriesAreIgnored) {
  add_gpu({});
  for (const std::string name : {"power", "1x", "-1", "99999999999999999999", "4096", "+2"}) {
    write("class/kfd/kfd/topology/nodes/" + name + "/gpu_id", "not a number\n");
  }
  EXPECT_EQ(read().gpus.size(), 1u);
}

TEST_F(TopologyTest, MalformedPropertiesAreIgnored) {
  add_gpu({.unique_id = 5});
  std::ofstream(path() / node_path(1) / "properties", std::ios::app)
      << "\n \nnew_text of a later kernel\nnew_number 0x10\nunique_id 6\nlast";
  EXPECT_EQ(read().gpus.at(0).unique_id, 5u);
}

TEST_F(TopologyTest, UnprintableTextCountsAsMissing) {
  add_gpu({});
  add_board("0000:05:00.0", 0x74a1,
            {{"product_name", "\x1b[2J\n"},
             {"current_compute_partition", std::string(65, 'S')},
             {"current_memory_partition", std::string("NPS1\0", 5)}});
  write("module/amdgpu/version", std::string(100'000, '6'));
  const Topology topology = read();
  EXPECT_EQ(topology.driver_release, "");
  EXPECT_EQ(topology.gpus.at(0).product, "");
  EXPECT_EQ(topology.gpus.at(0).compute_partitioning, "");
  EXPECT_EQ(topology.gpus.at(0).memory_partitioning, "");
}

TEST_F(TopologyTest, IncompleteDescriptionsAreRefused) {
  const gcr::Error missing = refusal_with("properties", "gfx_target_version 90402\n");
  EXPECT_EQ(missing.code(), Code::kUnsupported);
  EXPECT_NE(missing.message().find("has no valid drm_render_minor"), std::string::npos)
      << missing.message();
  EXPECT_EQ(refusal_with("properties", "").code(), Code::kUnsupported);
  EXPECT_EQ(refusal_with("gpu_id", "many\n").code(), Code::kUnsupported);
  EXPECT_EQ(refusal_with("gpu_id", "4294967296\n").code(), Code::kUnsupported);
  EXPECT_EQ(refusal_with("gpu_id", "").code(), Code::kUnsupported);
}

TEST_F(TopologyTest, ImpossibleNumbersAreRefused) {
  const auto error_with = [&](const std::string& first_lines) {
    add_gpu({});
    std::ifstream file(path() / node_path(1) / "properties");
    const std::string rest{std::istreambuf_iterator<char>(file), {}};
    return refusal_with("properties", first_lines + rest).message();
  };
  for (const std::string version : {"0", "109900", "91600", "4294967296"}) {
    const std::string message = error_with("gfx_target_version " + version + "\n");
    EXPECT_NE(message.find("gfx_target_version"), std::string::npos) << message;
  }
  EXPECT_NE(error_with("drm_render_minor 4294967296\n").find("drm_render_minor"),
            std::string::npos);
  EXPECT_NE(error_with("location_id 65536\n").find("location_id"), std::string::npos);
}

TEST_F(TopologyTest, ImpossibleVramSizeIsRefused) {
  add_gpu({.vram_bytes = ~std::uint64_t{0}});
  EXPECT_EQ(read().gpus.at(0).vram_bytes, ~std::uint64_t{0});
  write(node_path(1) + "mem_banks/1/properties", "heap_type 2\nsize_in_bytes 1\n");
  EXPECT_EQ(read_topology(path()).error().code(), Code::kUnsupported);
}

TEST_F(TopologyTest, DuplicateGpuNamesAreRefused) {
  add_gpu({});
  add_gpu({.number = 2});
  const auto topology = read_topology(path());
  ASSERT_FALSE(topology);
  EXPECT_EQ(topology.error().message(), "two GPUs have the gpu_id 1");
}

TEST_F(TopologyTest, NonRegularFilesAreRefusedWithoutBlocking) {
  const fs::path properties = path() / node_path(1) / "properties";
  add_gpu({});
  fs::remove(properties);
  ASSERT_EQ(::mkfifo(properties.c_str(), 0644), 0);
  EXPECT_EQ(read_topology(path()).error().code(), Code::kIo);
  fs::remove(properties);
  fs::create_directory(properties);
  EXPECT_EQ(read_topology(path()).error().code(), Code::kIo);
  fs::remove(properties);
  fs::create_symlink("properties", properties);
  EXPECT_EQ(read_topology(path()).error().code(), Code::kIo);
  fs::remove(properties);
  fs::create_symlink("/dev/zero", properties);
  EXPECT_EQ(read_topology(path()).error().code(), Code::kIo);
  fs::remove(properties);
  write(node_path(1) + "properties", std::string(1 << 20, 'x'));
  EXPECT_EQ(read_topology(path()).error().code(), Code::kIo);
}

gcr::device::GpuInfo hip_gpu(const std::string& name, const std::string& pci_address) {
  return {.uuid = *gcr::parse_gpu(name), .pci_address = pci_address};
}

TEST_F(TopologyTest, HipGpuIsFoundByUniqueIdAtAnyAddress) {
  add_gpu({.unique_id = 0x7cf529dea4b33bad});
  add_gpu({.number = 2, .gpu_id = 2, .location_id = 0x600, .unique_id = 7});
  const Topology topology = read();
  const GpuNode* found = find_node(topology, hip_gpu("GPU-7CF529DEA4B33BAD", "0000:06:00.0"));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->node, 1u);
  EXPECT_EQ(find_node(topology, hip_gpu("7cf529dea4b33bae", "0000:07:00.0")), nullptr);
}

TEST_F(TopologyTest, GpuWithoutUniqueIdIsFoundByPciAddress) {
  add_gpu({});
  add_gpu({.number = 2, .gpu_id = 2, .location_id = 0x600});
  const Topology topology = read();
  const GpuNode* found = find_node(topology, hip_gpu("GPU-ffffffffffffffff", "0000:06:00.0"));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->node, 2u);
}

TEST_F(TopologyTest, PartitionIsFoundByPciFunction) {
  for (unsigned part = 0; part < 2; ++part) {
    add_gpu({.number = 1 + part,
             .gpu_id = 1 + part,
             .location_id = 0x500 + part,
             .unique_id = 0x7cf529dea4b33bad});
  }
  add_board("0000:05:00.0", 0x74a1, {});
  const Topology topology = read();
  const GpuNode* found = find_node(topology, hip_gpu("7cf529dea4b33bad", "0000:05:00.1"));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->node, 2u);
  EXPECT_EQ(found->partition, 1u);
}

TEST_F(TopologyTest, FreeVramIsTotalMinusUsed) {
  add_gpu({});
  add_board("0000:05:00.0", 0x74a1, {});
  EXPECT_FALSE(free_vram(read().gpus.at(0), path()));
  add_board("0000:05:00.0", 0x74a1,
            {{"mem_info_vram_total", "1000\n"}, {"mem_info_vram_used", "300\n"}});
  EXPECT_EQ(free_vram(read().gpus.at(0), path()), 700u);
}

TEST_F(TopologyTest, QueuesAreThoseOfTheKfdProcess) {
  EXPECT_FALSE(queues_of(17, path()));
  write("class/kfd/kfd/proc/17/pasid", "32770\n");
  EXPECT_TRUE(queues_of(17, path()).value().empty());
  write("class/kfd/kfd/proc/17/queues/0/type", "0\n");
  write("class/kfd/kfd/proc/17/queues/5/type", "4\n");
  EXPECT_EQ(queues_of(17, path()).value(), (std::vector{0, 4}));
}

TEST_F(TopologyTest, WavesAreSavedUnlessAmdgpuDisablesIt) {
  EXPECT_TRUE(read().saves_waves);
  write("module/amdgpu/parameters/cwsr_enable", "0\n");
  EXPECT_FALSE(read().saves_waves);
}

}  // namespace
