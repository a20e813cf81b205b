#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "migrate-agent/gpu/device/cuda/driver.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/inventory/nvml.h"
#include "migrate-agent/preflight/inventory/vram.h"
#include "src/base/units.h"

namespace gcr::inventory {
namespace {

using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

class UsedVram : public testing::Test {
 protected:
  static void configure(std::uint64_t used_bytes, int processes) {
    ::setenv("FAKE_NVML_USED", std::to_string(used_bytes).c_str(), 1);
    ::setenv("FAKE_NVML_PROCESSES", std::to_string(processes).c_str(), 1);
  }
  std::map<Uuid, std::uint64_t> of(pid_t pid) const { return used_vram(pid, driver_).value(); }

  std::shared_ptr<const device::Driver> driver_ = device::cuda::load().value();
  const Uuid gpu_ = driver_->gpus().front().uuid;
};

TEST_F(UsedVram, NvmlListsAnyNumberOfProcesses) {
  const auto nvml = Nvml::load();
  ASSERT_TRUE(nvml);
  for (const int count : {0, 1, 16, 17, 1000}) {
    configure(0, count);
    const auto used = nvml->used_by_process(gpu_);
    ASSERT_TRUE(used) << count;
    ASSERT_EQ(used->size(), static_cast<std::size_t>(count));
    if (count == 0) continue;
    EXPECT_EQ(used->at(1000 + count - 1), count * kMiB);
  }
  configure(0, 1'000'000);
  EXPECT_FALSE(nvml->used_by_process(gpu_)) << "no GPU has so many";
}

TEST_F(UsedVram, IsPerProcessInTheHostsPidNamespace) {
  configure(kGiB, 20);
  const bool first = procfs::namespace_link(::getpid(), "pid") == "pid:[4026531836]";
  EXPECT_THAT(of(1002), UnorderedElementsAre(Pair(gpu_, first ? 3 * kMiB : kGiB)));
}

TEST_F(UsedVram, IsTheTotalIfTheProcessIsUnknown) {
  configure(kGiB, 20);
  EXPECT_THAT(of(999), UnorderedElementsAre(Pair(gpu_, kGiB)));
  configure(kMiB, 20);
  EXPECT_THAT(of(999), IsEmpty()) << "no context uses so little, and the driver reports none";
}

}  // namespace
}  // namespace gcr::inventory
