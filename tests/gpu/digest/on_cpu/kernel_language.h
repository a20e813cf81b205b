// What digest_kernel.cu needs of its language, on a processor: each thread of a block is a context
// of its own, and one runs at a time until it waits for others.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#pragma GCC diagnostic ignored "-Wpedantic"  // __int128

#define GCR_DEVICE
#define GCR_SHARED static
#define GCR_KERNEL(threads) static void

#define GCR_THREAD (gcr::digest::on_cpu::running->thread)
#define GCR_BLOCK (gcr::digest::on_cpu::running->block)
#define GCR_BLOCKS (gcr::digest::on_cpu::running->blocks)

namespace gcr::digest {
namespace on_cpu {

constexpr unsigned kWarpLanes = 32;

/// A barrier for all threads.
struct Barrier {
  unsigned expected = 0;
  unsigned waiting = 0;
  unsigned passed = 0;
};

struct Thread {
  unsigned thread, block, blocks;
  Barrier* warp;
  Barrier* all;
  std::uint64_t* given;  ///< exchanged between the lanes of its warp
  const std::function<void()>* kernel;
  bool ended = false;
  ucontext_t context{};
  std::unique_ptr<char[]> stack;
};

inline Thread* running = nullptr;
inline ucontext_t scheduler;

inline void wait_at(Barrier& barrier) {
  const unsigned before = barrier.passed;
  if (++barrier.waiting == barrier.expected) {
    barrier.waiting = 0;
    ++barrier.passed;
  }
  while (barrier.passed == before) ::swapcontext(&running->context, &scheduler);
}

/// Runs `kernel` with blocks of `threads`, one block after the other.
inline void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  constexpr std::size_t kStackBytes = 64 * 1024;
  for (unsigned block = 0; block < blocks; ++block) {
    std::vector<Barrier> warps(threads / kWarpLanes, Barrier{kWarpLanes});
    Barrier all{threads};
    std::vector<std::uint64_t> given(threads);
    std::vector<Thread> lanes(threads);
    for (unsigned i = 0; i < threads; ++i) {
      Thread& lane = lanes[i];
      lane.thread = i;
      lane.block = block;
      lane.blocks = blocks;
      lane.warp = &warps[i / kWarpLanes];
      lane.all = &all;
      lane.given = &given[i / kWarpLanes * kWarpLanes];
      lane.kernel = &kernel;
      lane.stack = std::make_unique<char[]>(kStackBytes);
      ::getcontext(&lane.context);
      lane.context.uc_stack.ss_sp = lane.stack.get();
      lane.context.uc_stack.ss_size = kStackBytes;
      lane.context.uc_link = &scheduler;
      ::makecontext(
          &lane.context,
          +[] {
            (*running->kernel)();
            running->ended = true;
          },
          0);
    }
    for (bool left = true; left;) {
      left = false;
      for (Thread& lane : lanes) {
        if (lane.ended) continue;
        left = true;
        running = &lane;
        ::swapcontext(&scheduler, &lane.context);
      }
    }
  }
}

}  // namespace on_cpu

struct Words {
  unsigned x, y, z, w;
};

inline Words make_words(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline void wait_for_block() { on_cpu::wait_at(*on_cpu::running->all); }

inline std::uint64_t exchange(std::uint64_t value, unsigned across) {
  on_cpu::Thread& self = *on_cpu::running;
  const unsigned lane = self.thread % on_cpu::kWarpLanes;
  self.given[lane] = value;
  on_cpu::wait_at(*self.warp);
  const std::uint64_t other = self.given[lane ^ across];
  on_cpu::wait_at(*self.warp);
  return other;
}

inline Words read_once(const std::uint8_t* from) {
  Words words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}

inline std::uint64_t read_constant(const std::uint64_t* from) { return *from; }

}  // namespace gcr::digest
