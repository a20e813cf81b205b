// The memory ranges that CUDA's copies and fills touch, by public function name: all forms of a
// function have their parameters in the same order. Copies of rows (2D, 3D), of arrays and batches
// are not checked here, only by the driver.
#pragma once

#include "preload/cuda/abi/driver_abi.h"
#include "preload/cuda/tracked.h"
#include "preload/memory/bounds.h"

namespace gcr::preload {

namespace names {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  struct public_name;
#include "preload/cuda/driver_api.def"
}  // namespace names

inline bool stays_inside(Address address, std::size_t bytes) {
  return bounds::stays_inside(address, bytes, tracked::range_around);
}

/// Tells whether a call of the function reaches beyond an allocation. The default, for functions
/// that are not checked, costs nothing.
template <class Name>
struct Beyond {
  template <class... Arguments>
  static constexpr bool of(const Arguments&...) {
    return false;
  }
};

template <std::size_t kWidth>
struct BeyondByFill {
  static bool of(Address to, unsigned, std::size_t count, const auto&...) {
    return !stays_inside(to, count > SIZE_MAX / kWidth ? SIZE_MAX : count * kWidth);
  }
};
struct BeyondByCopy {
  static bool of(Address to, Address from, std::size_t bytes, const auto&...) {
    return !stays_inside(to, bytes) || !stays_inside(from, bytes);
  }
};
struct BeyondByRead {
  static bool of(const void*, Address from, std::size_t bytes, const auto&...) {
    return !stays_inside(from, bytes);
  }
};
struct BeyondByWrite {
  static bool of(Address to, const void*, std::size_t bytes, const auto&...) {
    return !stays_inside(to, bytes);
  }
};
struct BeyondByPeerCopy {
  static bool of(Address to, CUcontext, Address from, CUcontext, std::size_t bytes,
                 const auto&...) {
    return !stays_inside(to, bytes) || !stays_inside(from, bytes);
  }
};

// clang-format off
template <> struct Beyond<names::cuMemcpy> : BeyondByCopy {};
template <> struct Beyond<names::cuMemcpyAsync> : BeyondByCopy {};
template <> struct Beyond<names::cuMemcpyDtoD> : BeyondByCopy {};
template <> struct Beyond<names::cuMemcpyDtoDAsync> : BeyondByCopy {};
template <> struct Beyond<names::cuMemcpyDtoH> : BeyondByRead {};
template <> struct Beyond<names::cuMemcpyDtoHAsync> : BeyondByRead {};
template <> struct Beyond<names::cuMemcpyHtoD> : BeyondByWrite {};
template <> struct Beyond<names::cuMemcpyHtoDAsync> : BeyondByWrite {};
template <> struct Beyond<names::cuMemcpyPeer> : BeyondByPeerCopy {};
template <> struct Beyond<names::cuMemcpyPeerAsync> : BeyondByPeerCopy {};
template <> struct Beyond<names::cuMemsetD8> : BeyondByFill<1> {};
template <> struct Beyond<names::cuMemsetD8Async> : BeyondByFill<1> {};
template <> struct Beyond<names::cuMemsetD16> : BeyondByFill<2> {};
template <> struct Beyond<names::cuMemsetD16Async> : BeyondByFill<2> {};
template <> struct Beyond<names::cuMemsetD32> : BeyondByFill<4> {};
template <> struct Beyond<names::cuMemsetD32Async> : BeyondByFill<4> {};
// clang-format on

}  // namespace gcr::preload
