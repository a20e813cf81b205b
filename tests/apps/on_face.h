// Sample programs for tests that hold for both drivers of the software GPU.
#pragma once

#include <string>
#include <vector>

#include "tests/softgpu/face.h"

namespace gcr::apps {

/// The command that starts the program on that driver.
inline std::vector<std::string> on_face(softgpu::test::Face face,
                                        std::vector<std::string> command) {
  const bool hip = face == softgpu::test::Face::kHip;
  command.insert(command.begin(),
                 {"/usr/bin/env", hip ? "GCR_APP_RUNTIME=hip" : "GCR_APP_RUNTIME=cuda"});
  return command;
}

}  // namespace gcr::apps
