// Processes of subject.cc for tests that hold for both faces, and for real libraries too: with
// GCR_SUBJECT_DRIVER (CUDA's) or GCR_SUBJECT_HIP in the environment, those are used instead.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "src/base/units.h"
#include "tests/softgpu/face.h"
#include "tests/softgpu/machines.h"

namespace gcr::softgpu::test {

inline std::string result(CUresult code) { return std::to_string(code); }
inline const std::string kOk = result(CUDA_SUCCESS);
inline const std::string kPieceBytes = std::to_string(kChunkBytes);

/// A process of subject.cc, ready for commands.
class Subject : public Process {
 public:
  explicit Subject(const Machine& machine, Face face = Face::kCuda,
                   std::vector<std::string> wrapper = {})
      : Process(machine, command(face, std::move(wrapper))) {
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

  static std::vector<std::string> command(Face face, std::vector<std::string> wrapper = {}) {
    wrapper.emplace_back(SOFTGPU_SUBJECT);
    wrapper.push_back(library_of(face));
    return wrapper;
  }
};

/// A test of one face, and the names of its GPUs.
class FaceTest : public testing::TestWithParam<Face> {
 protected:
  bool hip() const { return GetParam() == Face::kHip; }
  std::string gpu_a() const { return hip() ? kAmdGpuA : kGpuA; }
  std::string gpu_b() const { return hip() ? kAmdGpuB : kGpuB; }
};

/// A machine with two GPUs, for tests that need two; on a real one, all its GPUs.
class SharingTest : public FaceTest {
 protected:
  bool has_two_gpus() { return one_.value("devices") != "1"; }
  /// The commands that create exportable memory. HIP has none on the host.
  std::vector<std::string> makes() const {
    return hip() ? std::vector<std::string>{"vmm"} : std::vector<std::string>{"vmm", "numa"};
  }

  Machine machine_{{{gpu_a(), "64M"}, {gpu_b(), "64M"}}};
  Subject one_{machine_, GetParam()};
  Subject other_{machine_, GetParam()};
};

}  // namespace gcr::softgpu::test
