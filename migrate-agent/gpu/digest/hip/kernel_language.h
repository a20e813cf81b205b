// What digest_kernel.cu needs from its language: here HIP, for clang and hipRTC. Only the
// compiler's builtin functions are used, no ROCm header (Clang's documentation, "AMDGPU support";
// LLVM's, "User Guide for AMDGPU Backend"). A warp is 32 lanes: half of a wavefront of 64.
#pragma once

#define GCR_DEVICE __attribute__((device))
#define GCR_SHARED __attribute__((shared))
/// A kernel of thread blocks of `threads`.
#define GCR_KERNEL(threads) \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads))) void

// Of a thread in its block, of that block in the grid, and how many there are.
#define GCR_THREAD __builtin_amdgcn_workitem_id_x()
#define GCR_BLOCK __builtin_amdgcn_workgroup_id_x()
#define GCR_BLOCKS (__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x())

namespace gcr::digest {

using Words = unsigned __attribute__((ext_vector_type(4)));

GCR_DEVICE inline Words make_words(unsigned x, unsigned y, unsigned z, unsigned w) {
  return Words{x, y, z, w};
}

/// Waits for all threads of the block, and sees what they wrote to shared memory.
GCR_DEVICE inline void wait_for_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

template <unsigned kAcross>
GCR_DEVICE std::uint64_t exchange(std::uint64_t value) {
  constexpr int kPattern = kAcross << 10 | 31;  // DS_SWIZZLE_B32 in its mode of bit masks
  const int low = __builtin_amdgcn_ds_swizzle(static_cast<int>(value), kPattern);
  const int high = __builtin_amdgcn_ds_swizzle(static_cast<int>(value >> 32), kPattern);
  return std::uint64_t{static_cast<unsigned>(high)} << 32 | static_cast<unsigned>(low);
}

/// The value of the lane of the same warp whose number differs by exclusive or with `across`, a
/// power of two below 32 that the compiler knows.
GCR_DEVICE inline std::uint64_t exchange(std::uint64_t value, unsigned across) {
  return across == 16  ? exchange<16>(value)
         : across == 8 ? exchange<8>(value)
         : across == 4 ? exchange<4>(value)
         : across == 2 ? exchange<2>(value)
                       : exchange<1>(value);
}

/// 16 bytes that are read once: they need no place in the caches.
GCR_DEVICE inline Words read_once(const std::uint8_t* from) {
  using Global = const __attribute__((address_space(1))) Words;
  return __builtin_nontemporal_load((Global*)from);  // NOLINT: only this cast changes the space
}

/// A number that does not change while the kernel runs.
GCR_DEVICE inline std::uint64_t read_constant(const std::uint64_t* from) {
  using Global = const __attribute__((address_space(1))) std::uint64_t;
  return *(Global*)from;  // NOLINT: as above
}

}  // namespace gcr::digest
