// Functions of the driver's interface that take a stream, or use the default one, exist twice: the
// second name (`_ptsz`, `_ptds`) is for programs with a per-thread default stream.
#pragma once

#include "tests/softgpu/cuda/face.h"

/// Defines both; `implementation` takes the kind of default stream before the other arguments.
#define SOFTGPU_BOTH(name, per_thread_name, implementation, parameters, ...)                  \
  SOFTGPU_API name parameters { return implementation(DefaultStream::kLegacy, __VA_ARGS__); } \
  SOFTGPU_API per_thread_name parameters {                                                    \
    return implementation(DefaultStream::kPerThread, __VA_ARGS__);                            \
  }
