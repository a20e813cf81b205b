// Findings of preflight about AMD GPUs and processes that use them: a test for each, with trees of
// files and fake /proc files.
#include "migrate-agent/preflight/amd/amd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "migrate-agent/preflight/compare/comparison.h"
#include "src/base/units.h"
#include "tests/support/sysfs_tree.h"

namespace gcr::preflight {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kUniqueId = 0x7cf529dea4b33bad;

std::vector<std::string> ids_of(const findings::Findings& findings) {
  std::vector<std::string> ids;
  for (const proto::Finding& finding : findings.list()) ids.push_back(finding.id());
  return ids;
}

class AmdGpus : public testing::Test, protected SysfsTree {
 protected:
  /// An undivided MI300X under a driver that can move it.
  AmdGpus() {
    write("module/amdgpu/version", "6.16.13\n");
    add_board("0000:05:00.0", 0x74a1,
              {{"current_compute_partition", "SPX\n"}, {"current_memory_partition", "NPS1\n"}});
  }

  static Node node() { return {.unique_id = kUniqueId, .num_xcc = 8, .vram_bytes = 192 * kGiB}; }

  /// As the inventory of a host describes them.
  proto::HostFacts host() const {
    proto::HostFacts facts;
    facts.set_kernel("6.12.48");
    const auto topology = device::hip::read_topology(path()).value();
    facts.set_amd_driver_release(topology.driver_release);
    facts.set_amd_keeps_no_waves(!topology.saves_waves);
    const device::GpuInfo info{.vendor = device::Vendor::kAmd,
                               .uuid = *parse_gpu("7cf529dea4b33bad"),
                               .pci_address = "0000:05:00.0",
                               .name = "AMD Instinct MI300X",
                               .total_bytes = 192 * kGiB};
    proto::Gpu& gpu = *facts.add_gpus();
    gpu.set_uuid(to_bytes(info.uuid));
    gpu.set_name(info.name);
    gpu.set_total_bytes(info.total_bytes);
    gpu.set_allowed(true);
    describe_amd_gpu(topology, info, gpu);
    return facts;
  }

  static std::vector<std::string> checked(const proto::HostFacts& host) {
    findings::Findings findings(findings::Side::kSource);
    check_gpu(host.gpus(0), host, findings);
    return ids_of(findings);
  }

  static std::vector<std::string> compared(const proto::HostFacts& there,
                                           const proto::HostFacts& here) {
    findings::Findings findings(findings::Side::kDestination);
    compare_amd_gpus(there.gpus(0), here.gpus(0), findings);
    return ids_of(findings);
  }
};

TEST_F(AmdGpus, SupportedGpuHasNoFindings) {
  add_gpu(node());
  const proto::HostFacts facts = host();
  EXPECT_EQ(facts.gpus(0).kfd_id(), 1u);
  EXPECT_EQ(facts.gpus(0).amd().architecture(), "gfx942");
  EXPECT_EQ(facts.gpus(0).amd().properties().at("wave_front_size"), 64u);
  EXPECT_THAT(checked(facts), IsEmpty());
  EXPECT_THAT(compared(facts, facts), IsEmpty());
}

TEST_F(AmdGpus, GpuMissingInSysfsIsAFinding) {
  EXPECT_THAT(checked(host()), ElementsAre("amd-unknown"));
}

TEST_F(AmdGpus, PartitionsWithOneNameAreAFinding) {
  add_gpu(node());
  proto::HostFacts facts = host();
  *facts.add_gpus() = facts.gpus(0);
  EXPECT_THAT(checked(facts), ElementsAre("amd-partitions"));
}

TEST_F(AmdGpus, ArchitectureWithoutSavedQueuesIsAFinding) {
  Node gpu = node();
  gpu.gfx_target_version = "120001";
  gpu.num_xcc = 1;
  add_gpu(gpu);
  EXPECT_THAT(checked(host()), ElementsAre("amd-architecture"));
}

TEST_F(AmdGpus, UnsupportedMultipleDiesAreAFinding) {
  add_gpu(node());
  for (const auto& [release, kernel, can] : {std::tuple("6.12.12", "6.18.0", false),
                                             {"6.16.12", "6.18.0", false},
                                             {"6.16.13", "5.15.0", true},
                                             {"10.0.1", "5.15.0", true},
                                             {"", "6.12.48", false},
                                             {"", "6.18.2-amd64", true}}) {
    proto::HostFacts facts = host();
    facts.set_amd_driver_release(release);
    facts.set_kernel(kernel);
    EXPECT_EQ(checked(facts),
              can ? std::vector<std::string>() : std::vector<std::string>{"amd-dies"})
        << release << " on " << kernel;
  }
}

TEST_F(AmdGpus, UnsavedWavesAndHostMemoryAreFindings) {
  Node gpu = node();
  gpu.vram_bytes = 0;
  add_gpu(gpu);
  write("module/amdgpu/parameters/cwsr_enable", "0\n");
  EXPECT_THAT(checked(host()), ElementsAre("amd-waves", "amd-no-vram"));
}

TEST_F(AmdGpus, DifferencesOfTheDestinationAreFindings) {
  add_gpu(node());
  const proto::HostFacts source = host();
  Node older = node();
  older.firmware = 176;
  add_gpu(older);
  EXPECT_THAT(compared(source, host()), ElementsAre("amd-firmware"));
  EXPECT_THAT(compared(host(), source), IsEmpty()) << "newer firmware is accepted";
  add_gpu(node());
  add_board("0000:05:00.0", 0x74a1, {{"current_memory_partition", "NPS4\n"}});
  EXPECT_THAT(compared(source, host()), ElementsAre("amd-partition-mode"));
  proto::HostFacts other = source;
  auto& properties = *other.mutable_gpus(0)->mutable_amd()->mutable_properties();
  properties["caches_count"] += 1;
  EXPECT_THAT(compared(source, other), IsEmpty()) << "more caches are accepted";
  EXPECT_THAT(compared(other, source), ElementsAre("amd-properties"));
  properties["simd_count"] += 1;
  EXPECT_THAT(compared(source, other), ElementsAre("amd-properties"));
}

TEST_F(AmdGpus, MissingPageFaultRetryIsAFinding) {
  add_gpu(node());
  const proto::Gpu by_process = host().gpus(0);
  Node gpu = node();
  gpu.gfx_target_version = "110000";
  add_gpu(gpu);
  const proto::Gpu never = host().gpus(0);
  gpu.gfx_target_version = "90006";
  add_gpu(gpu);
  write("module/amdgpu/parameters/noretry", "0\n");
  const proto::Gpu always = host().gpus(0);
  const auto compared = [](bool wanted, const proto::Gpu& from, const proto::Gpu& to) {
    proto::ProcessFacts process;
    process.set_xnack(wanted);
    findings::Findings findings(findings::Side::kDestination);
    compare_xnack(process, from, to, findings);
    return ids_of(findings);
  };
  EXPECT_THAT(compared(true, by_process, never), ElementsAre("amd-xnack"));
  EXPECT_THAT(compared(false, by_process, never), IsEmpty());
  EXPECT_THAT(compared(true, by_process, by_process), IsEmpty());
  EXPECT_THAT(compared(false, always, never), ElementsAre("amd-xnack"));
  EXPECT_THAT(compared(true, never, never), IsEmpty()) << "the option has no effect there";
}

class AmdFilesTest : public testing::Test, protected SysfsTree {
 protected:
  static std::vector<std::string> found(const AmdFiles& files) {
    findings::Findings findings(findings::Side::kSource);
    check_amd_files(files, findings);
    return ids_of(findings);
  }
};

TEST_F(AmdFilesTest, HipProcessOpensKfdFirst) {
  const std::string maps =
      "7f0000000000-7f0000200000 rw-s 100000000 00:06 500   /dev/dri/renderD128\n"
      "7f0000200000-7f0000400000 rw-s 100200000 00:06 500   /dev/dri/renderD128\n"
      "7f1000000000-7f1000200000 rw-s 100000000 00:06 501   /dev/dri/renderD129\n"
      "7f2000000000-7f2000002000 rw-s 00000000 00:06 400    /dev/kfd\n"
      "7f3000000000-7f3000002000 r-xp 00000000 08:01 77     /opt/rocm/lib/libamdhip64.so.6\n";
  EXPECT_THAT(found({{{3, "/dev/kfd"}, {4, "/dev/dri/renderD128"}}, maps}), IsEmpty());
  EXPECT_THAT(found({{{0, "/dev/null"}}, "no line of a map\n"}), IsEmpty());
  EXPECT_FALSE((AmdFiles{{{0, "/dev/null"}}, ""}).any());
  EXPECT_TRUE((AmdFiles{{{0, "/dev/kfd"}}, ""}).any());
  EXPECT_TRUE((AmdFiles{{}, maps}).any());
}

TEST_F(AmdFilesTest, RenderNodeBeforeOrWithoutKfdIsAFinding) {
  EXPECT_THAT(found({{{3, "/dev/dri/renderD128"}}, ""}), ElementsAre("amd-render-only"));
  EXPECT_THAT(found({{{3, "/dev/dri/renderD128"}, {9, "/dev/kfd"}}, ""}),
              ElementsAre("amd-render-order"));
}

TEST_F(AmdFilesTest, BufferMappedTwiceIsAFinding) {
  EXPECT_THAT(found({{},
                     "7f0000000000-7f0000200000 rw-s 100000000 00:06 500   /dev/dri/renderD128\n"
                     "7f5000000000-7f5000001000 rw-s 100100000 00:06 500   /dev/dri/renderD128\n"}),
              ElementsAre("amd-mapping"));
}

TEST_F(AmdFilesTest, RenderNodesHiddenFromTheProcessAreAFinding) {
  add_gpu({.render_minor = 129});
  const auto topology = device::hip::read_topology(path()).value();
  const auto found = [&] {
    findings::Findings findings(findings::Side::kSource);
    check_render_nodes(path() / "root", topology, findings);
    return ids_of(findings);
  };
  EXPECT_THAT(found(), ElementsAre("amd-render-nodes", "amd-render-nodes"));
  write("root/dev/dri/renderD129", "");
  EXPECT_THAT(found(), ElementsAre("amd-render-nodes"));
  write("root/dev/dri/renderD128", "");
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(AmdFilesTest, ProcessWithoutAKfdEntryIsAFinding) {
  const auto found = [&] {
    findings::Findings findings(findings::Side::kSource);
    check_kfd_process(::getpid(), path(), findings);
    return ids_of(findings);
  };
  EXPECT_THAT(found(), ElementsAre("amd-inherited"));
  const std::string process = "class/kfd/kfd/proc/" + std::to_string(::getpid());
  write(process + "/queues/0/type", "1\n");
  EXPECT_THAT(found(), IsEmpty());
  write(process + "/queues/1/type", "4\n");
  EXPECT_THAT(found(), ElementsAre("amd-queue"));
}

// The name is that of an NVIDIA GPU there; here it is arbitrary.
TEST(AmdMap, GpuMapsToOneOfTheSameVendor) {
  const mover::MappableGpu amd{.uuid = *parse_gpu("7cf529dea4b33bad"),
                               .name = "GPU",
                               .chosen = true,
                               .vendor = device::Vendor::kAmd};
  mover::MappableGpu nvidia = amd;
  nvidia.vendor = device::Vendor::kNvidia;
  EXPECT_TRUE(mover::map_gpus({amd}, {amd}));
  EXPECT_FALSE(mover::map_gpus({amd}, {nvidia}));
  nvidia.chosen = false;
  EXPECT_FALSE(mover::map_gpus({nvidia}, {amd})) << "CUDA needs a counterpart for every GPU";
}

}  // namespace
}  // namespace gcr::preflight
