#include "tests/softgpu/driver_fixture.h"

#include <cstdlib>

namespace gcr::softgpu::test {
namespace {

/// A driver is initialised once, so the machine belongs to the whole process.
class Drivers : public testing::Environment {
 public:
  void SetUp() override {
    machine_ = std::make_unique<Machine>(std::vector<Machine::Gpu>{
        {kGpuA, "64M"}, {kGpuB, "32M"}, {kAmdGpuA, "64M"}, {kAmdGpuB, "32M"}});
    static std::vector<std::string> variables = machine_->environment();
    for (std::string& variable : variables) ::putenv(variable.data());
    ASSERT_EQ(driver(Face::kCuda).cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(driver(Face::kHip).cuInit(0), CUDA_SUCCESS);
  }
  void TearDown() override { machine_.reset(); }

  const Machine& machine() const { return *machine_; }

 private:
  std::unique_ptr<Machine> machine_;
};

Drivers* const drivers = [] {
  auto* environment = new Drivers;
  testing::AddGlobalTestEnvironment(environment);
  return environment;
}();

}  // namespace

const Machine& machine() { return drivers->machine(); }

const Calls& driver(Face face) {
  static const Calls cuda(SOFTGPU_LIBRARY);
  static const Calls hip(SOFTHIP_LIBRARY);
  return face == Face::kCuda ? cuda : hip;
}

}  // namespace gcr::softgpu::test
