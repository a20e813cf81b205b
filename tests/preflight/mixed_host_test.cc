// A host with a GPU of each vendor: its inventory, its offers, and where jobs of each kind can go.
// Both drivers are the software ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "migrate-agent/preflight/compare/comparison.h"
#include "migrate-agent/preflight/inventory/host_state.h"
#include "src/base/units.h"
#include "tests/support/sysfs_tree.h"

namespace gcr::preflight {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class MixedHost : public testing::Test, protected SysfsTree {
 protected:
  inline static const Node kNode{.gpu_id = 47'056, .unique_id = 0xe9, .vram_bytes = 64 * kMiB};

  MixedHost() {
    config_.criu.argv = {"python3", GCR_FAKE_CRIU, "4.2.0", "good"};
    config_.sysfs = path();
    write("module/amdgpu/version", "6.16.13\n");
    add_gpu(kNode);
    add_board("0000:05:00.0", 0x74a1,
              {{"mem_info_vram_total", "1000\n"}, {"mem_info_vram_used", "300\n"}});
  }

  Survey survey() const {
    findings::Findings findings(findings::Side::kSource);
    return preflight::survey(config_, findings);
  }

  /// Of a job with a buffer on the GPU at this index, on a host like this one.
  proto::PreflightRequest request(int gpu) const {
    proto::PreflightRequest request;
    *request.mutable_host() = survey().facts;
    proto::Buffer& buffer = *request.add_buffers();
    buffer.set_gpu_uuid(request.host().gpus(gpu).uuid());
    buffer.set_size_bytes(2 * kMiB);
    request.set_no_prefill(true);
    return request;
  }

  std::vector<std::string> mapped(const proto::PreflightRequest& request) {
    findings::Findings findings(findings::Side::kDestination);
    const Survey here = survey();
    mover::IncomingVram vram(here.driver, hostmem::HugepagePolicy::kNever);
    map_ = map_gpus(request, here.facts, config_, vram, findings);
    std::vector<std::string> ids;
    for (const proto::Finding& finding : findings.list()) {
      // The software GPUs are smaller than a context on other GPUs.
      if (finding.id() != "vram-too-small") ids.push_back(finding.id());
    }
    return ids;
  }

  worker::Config config_;
  std::vector<device::GpuPair> map_;
};

TEST_F(MixedHost, ListsGpusOfBothVendors) {
  const Survey found = survey();
  ASSERT_EQ(found.facts.gpus_size(), 2);
  EXPECT_GT(found.facts.driver_version(), 12'000);
  EXPECT_EQ(found.facts.amd_driver_release(), "6.16.13");
  EXPECT_FALSE(found.facts.gpus(0).has_amd());
  const proto::Gpu& amd = found.facts.gpus(1);
  EXPECT_EQ(gpu_name(to_uuid(amd.uuid())), "GPU-00000000000000e9");
  EXPECT_EQ(amd.kfd_id(), 47'056u);
  EXPECT_EQ(amd.amd().architecture(), "gfx942");
}

TEST_F(MixedHost, FreeVramComesFromEachVendorsInterface) {
  const auto offered = inventory::offer(config_);
  ASSERT_TRUE(offered) << offered.error().message();
  ASSERT_EQ(offered->gpus_size(), 2);
  EXPECT_GT(offered->gpus(0).free_bytes(), 700u) << "by the driver";
  EXPECT_EQ(offered->gpus(1).free_bytes(), 700u) << "by sysfs";
}

TEST_F(MixedHost, JobMapsToTheGpuOfItsVendor) {
  EXPECT_THAT(mapped(request(1)), IsEmpty());
  ASSERT_EQ(map_.size(), 1u) << "no member uses CUDA";
  EXPECT_EQ(gpu_name(map_[0].to), "GPU-00000000000000e9");
  EXPECT_THAT(mapped(request(0)), IsEmpty());
  ASSERT_EQ(map_.size(), 1u) << "only AMD GPUs in use need a counterpart";
  EXPECT_EQ(map_[0].to, to_uuid(survey().facts.gpus(0).uuid()));
}

TEST_F(MixedHost, HipJobNeedsACounterpartPerVisibleGpu) {
  proto::PreflightRequest without_buffers = request(1);
  without_buffers.clear_buffers();
  without_buffers.add_members()->set_needs_amdgpu_plugin(true);
  EXPECT_THAT(mapped(without_buffers), IsEmpty());
  ASSERT_EQ(map_.size(), 1u) << "no member uses CUDA";
  EXPECT_EQ(gpu_name(map_[0].to), "GPU-00000000000000e9");

  proto::PreflightRequest of_two = without_buffers;
  *of_two.mutable_host()->add_gpus() = of_two.host().gpus(1);
  of_two.mutable_host()->mutable_gpus(2)->set_uuid(to_bytes(Uuid::random()));
  EXPECT_THAT(mapped(of_two), ElementsAre("gpu-map"));

  proto::Device& first =
      *of_two.mutable_members(0)->mutable_limits()->mutable_devices()->add_allowed();
  first.set_gpu_uuid(of_two.host().gpus(1).uuid());
  EXPECT_THAT(mapped(of_two), IsEmpty());
  EXPECT_EQ(map_.size(), 1u);
}

TEST_F(MixedHost, CudaProcessNeedsACounterpartPerGpu) {
  proto::PreflightRequest both = request(1);
  both.add_members()->set_cuda_restore_tid(17);
  EXPECT_THAT(mapped(both), IsEmpty());
  EXPECT_EQ(map_.size(), 2u);
  both.mutable_host()->mutable_gpus()->SwapElements(0, 1);
  *both.mutable_host()->add_gpus() = both.host().gpus(1);
  both.mutable_host()->mutable_gpus(2)->set_uuid(to_bytes(Uuid::random()));
  EXPECT_THAT(mapped(both), ElementsAre("gpu-map"));
}

TEST_F(MixedHost, AmdDifferencesAreFoundInPreflight) {
  const proto::PreflightRequest from_here = request(1);
  Node older = kNode;
  older.firmware = 100;
  add_gpu(older);
  EXPECT_THAT(mapped(from_here), ElementsAre("amd-firmware"));
  Node another = kNode;
  another.device_id = 0x74a0;
  add_gpu(another);
  EXPECT_THAT(mapped(from_here), ElementsAre("gpu-map"));
}

}  // namespace
}  // namespace gcr::preflight
