// The faces of the software GPU, for tests that hold for both.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace gcr::softgpu::test {

enum class Face { kCuda, kHip };

/// The library that a test process loads; the environment may name a real one.
inline std::string library_of(Face face) {
  const char* other = std::getenv(face == Face::kHip ? "GCR_SUBJECT_HIP" : "GCR_SUBJECT_DRIVER");
  if (other != nullptr) return other;
  return face == Face::kHip ? SOFTHIP_LIBRARY : SOFTGPU_LIBRARY;
}

/// INSTANTIATE_TEST_SUITE_P(Faces, Suite, kBothFaces, name_of_face)
inline const auto kBothFaces = testing::Values(Face::kCuda, Face::kHip);
inline std::string name_of_face(const testing::TestParamInfo<Face>& info) {
  return info.param == Face::kHip ? "Hip" : "Cuda";
}

}  // namespace gcr::softgpu::test
