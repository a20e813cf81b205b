// For AMD GPUs sysfs reports the free VRAM, without a context.
#include <gtest/gtest.h>

#include "migrate-agent/preflight/inventory/vram.h"
#include "tests/support/sysfs_tree.h"

namespace gcr::inventory {
namespace {

/// A host with one GPU, which no process can use.
class ClosedDriver final : public device::Driver {
 public:
  const std::vector<device::GpuInfo>& gpus() const override { return gpus_; }
  Result<std::shared_ptr<device::Gpu>> open(const device::GpuInfo&) const override {
    return Error(Code::kUnavailable, "no context");
  }
  std::unique_ptr<device::Control> control(pid_t) const override { return nullptr; }
  bool is_in(pid_t) const override { return false; }

 private:
  const std::vector<device::GpuInfo> gpus_ = {
      {.vendor = device::Vendor::kAmd, .uuid = *parse_gpu("GPU-7cf529dea4b33bad")}};
};

TEST(FreeVram, OfAmdGpusComesFromSysfs) {
  const SysfsTree sysfs;
  const auto driver = std::make_shared<ClosedDriver>();
  const Uuid gpu = driver->gpus().front().uuid;
  EXPECT_EQ(FreeVram(driver, sysfs.path()).of(gpu).error().code(), Code::kUnavailable);
  sysfs.add_gpu({.unique_id = 0x7cf529dea4b33bad});
  sysfs.add_board("0000:05:00.0", 0x74a1,
                  {{"mem_info_vram_total", "1000\n"}, {"mem_info_vram_used", "300\n"}});
  EXPECT_EQ(FreeVram(driver, sysfs.path()).of(gpu).value(), 700u);
  EXPECT_EQ(FreeVram(driver, sysfs.path()).of(Uuid()).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace gcr::inventory
