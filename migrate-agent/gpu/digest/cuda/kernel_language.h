// What digest_kernel.cu needs from its language: here CUDA, for nvcc. A warp is 32 lanes.
#pragma once

#define GCR_DEVICE __device__
#define GCR_SHARED __shared__
/// A kernel of thread blocks of `threads`, of which a processor can have two.
#define GCR_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 2)

// Of a thread in its block, of that block in the grid, and how many there are.
#define GCR_THREAD threadIdx.x
#define GCR_BLOCK blockIdx.x
#define GCR_BLOCKS gridDim.x

namespace gcr::digest {

using Words = uint4;

GCR_DEVICE inline Words make_words(unsigned x, unsigned y, unsigned z, unsigned w) {
  return make_uint4(x, y, z, w);
}

/// Waits for all threads of the block, and sees what they wrote to shared memory.
GCR_DEVICE inline void wait_for_block() { __syncthreads(); }

/// The value of the lane of the same warp whose number differs by exclusive or with `across`, which
/// the compiler knows.
GCR_DEVICE inline std::uint64_t exchange(std::uint64_t value, unsigned across) {
  return __shfl_xor_sync(0xffffffff, value, across);
}

/// 16 bytes that are read once: they need no place in the first-level cache.
GCR_DEVICE inline Words read_once(const std::uint8_t* from) {
  Words words;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}

/// A number that does not change while the kernel runs.
GCR_DEVICE inline std::uint64_t read_constant(const std::uint64_t* from) { return __ldg(from); }

}  // namespace gcr::digest
