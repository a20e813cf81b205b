// Processes of subject.cc for tests that hold for a real driver too: with GCR_SUBJECT_DRIVER in the
// environment, its library is used instead of the software GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "src/base/units.h"
#include "tests/softgpu/machines.h"

namespace gcr::softgpu::test {

inline std::string result(CUresult code) { return std::to_string(code); }
inline const std::string kOk = result(CUDA_SUCCESS);
inline const std::string kPieceBytes = std::to_string(kChunkBytes);

/// A process of subject.cc, ready for commands.
class Subject : public Process {
 public:
  explicit Subject(const Machine& machine, std::vector<std::string> wrapper = {})
      : Process(machine, command(std::move(wrapper))) {
    EXPECT_EQ(receive(), "ready");
  }

  /// The rest of the answer to a command that must succeed.
  std::string value(const std::string& line) {
    const std::string answer = ask(line);
    EXPECT_TRUE(answer.starts_with(kOk + " ")) << line << ": " << answer;
    return answer.size() > 2 ? answer.substr(2) : "";
  }
  /// For an "import" elsewhere: this process and a descriptor of the buffer in it.
  std::string exported(const std::string& buffer) {
    return std::to_string(pid()) + " " + value("export " + buffer);
  }

 private:
  static std::vector<std::string> command(std::vector<std::string> wrapper) {
    wrapper.emplace_back(SOFTGPU_SUBJECT);
    return wrapper;
  }
};

/// A machine with two GPUs, where two are needed; on a real one, whatever it has.
class SharingTest : public testing::Test {
 protected:
  bool has_two_gpus() { return one_.value("devices") != "1"; }

  Machine machine_{{{kGpuA, "64M"}, {kGpuB, "64M"}}};
  Subject one_{machine_};
  Subject other_{machine_};
};

}  // namespace gcr::softgpu::test
