// On the software GPU memory behaves the same with and without the library.
#include <gtest/gtest.h>

#include <string>

#include "tests/softgpu/machines.h"

namespace gcr::preload {
namespace {

using softgpu::test::Machine;
using softgpu::test::Process;

void expect_no_difference(const Machine& machine, const std::string& variable) {
  Process program(machine, {"/usr/bin/env", "GCR_PRELOAD_LIBRARY=" GCR_PRELOAD_LIBRARY, variable,
                            GCR_ALLOCATION_SEMANTICS});
  std::string lines;
  for (std::string line; !(line = program.receive()).empty();) lines += line + "\n";
  EXPECT_EQ(program.wait(), 0) << lines;
  EXPECT_GT(lines.size(), 0u);
}

TEST(SemanticsTest, ProgramSeesTheSameMemory) {
  const Machine machine({{"aaaaaaaa-0000-4000-8000-0000000000e0", "2G"},
                         {"aaaaaaaa-0000-4000-8000-0000000000e1", "512M"}});
  expect_no_difference(machine, "USES=CUDA");
}

TEST(SemanticsTest, ProgramSeesTheSameMemoryInHip) {
  const Machine machine({{"aaaaaaaa000000e0", "2G"}, {"aaaaaaaa000000e1", "512M"}});
  expect_no_difference(machine, "SUBJECT_USES_HIP=1");
}

}  // namespace
}  // namespace gcr::preload
