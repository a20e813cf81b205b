// The kernels of the sample programs, for CUDA and for HIP. Programs have kernels.ptx in them, made
// from this file by scripts/make-ptx, and this file, which hipRTC compiles when they start on HIP.
// The software GPU has the same ones as CPU code (tests/softgpu/engine/kernels.cc and
// waiting_kernels.cc), found by their names: a change here is a change there.
//
// All arithmetic is on unsigned 64-bit words.
using Word = unsigned long long;

// What the two languages do not share. In HIP by the compiler's own functions: no header is needed.
// Other processes' words may be on another GPU or on the host: they are read and written with
// system scope.
#ifdef __HIP__
#define GCR_DEVICE __attribute__((device))
#define GCR_VARIABLE extern "C" __attribute__((device))
#define GCR_KERNEL extern "C" __attribute__((global)) void
#define GCR_THREAD __builtin_amdgcn_workitem_id_x()
#define GCR_THREADS __builtin_amdgcn_workgroup_size_x()
#define GCR_BLOCK __builtin_amdgcn_workgroup_id_x()
#define GCR_BLOCKS (__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x())

namespace {

GCR_DEVICE inline void add(Word* sum, Word value) {
  __hip_atomic_fetch_add(sum, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
GCR_DEVICE inline Word acquire(const Word* word) {
  return __hip_atomic_load(word, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
GCR_DEVICE inline void release(Word* word, Word value) {
  __hip_atomic_store(word, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
GCR_DEVICE inline void fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, ""); }
GCR_DEVICE inline void wait_for_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
GCR_DEVICE inline void wait_briefly() { __builtin_amdgcn_s_sleep(8); }

}  // namespace
#else
#define GCR_DEVICE __device__
#define GCR_VARIABLE __device__
#define GCR_KERNEL extern "C" __global__ void
#define GCR_THREAD threadIdx.x
#define GCR_THREADS blockDim.x
#define GCR_BLOCK blockIdx.x
#define GCR_BLOCKS gridDim.x

namespace {

GCR_DEVICE inline void add(Word* sum, Word value) { atomicAdd(sum, value); }
GCR_DEVICE inline Word acquire(const Word* word) {
  Word value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
GCR_DEVICE inline void release(Word* word, Word value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
GCR_DEVICE inline void fence() { __threadfence_system(); }
GCR_DEVICE inline void wait_for_block() { __syncthreads(); }
GCR_DEVICE inline void wait_briefly() { __nanosleep(200); }

}  // namespace
#endif

namespace {

// A thread's number in the grid, and how many there are: loops go over the whole grid.
GCR_DEVICE inline Word first_of_thread() { return Word{GCR_BLOCK} * GCR_THREADS + GCR_THREAD; }
GCR_DEVICE inline Word threads() { return Word{GCR_BLOCKS} * GCR_THREADS; }

GCR_DEVICE inline Word rotate(Word word) { return word << 7 | word >> 57; }

/// Word `index` of a pattern.
GCR_DEVICE inline Word word_of(Word seed, Word index) {
  const Word word = ((index + 1) * 0x9e3779b97f4a7c15) ^ seed;
  return word ^ (word >> 29);
}

/// What a word counts in a checksum.
GCR_DEVICE inline Word weighed(Word word, Word index) {
  return (word ^ (word >> 31)) * (2 * index + 1);
}

}  // namespace

// Control state that the driver owns: the number of the counter a second time, and how many steps
// of the stencil the device has seen.
GCR_VARIABLE Word gcr_counter_twin = 100;
GCR_VARIABLE Word gcr_stencil_steps = 0;

GCR_KERNEL gcr_noop() {}

GCR_KERNEL gcr_fill(Word* to, Word words, Word value) {
  for (Word i = first_of_thread(); i < words; i += threads()) to[i] = value;
}

/// One thread.
GCR_KERNEL gcr_counter_increment(Word* number) {
  ++*number;
  ++gcr_counter_twin;
}

GCR_KERNEL gcr_stencil_init(Word* to, Word words, Word seed) {
  for (Word i = first_of_thread(); i < words; i += threads()) to[i] = word_of(seed, i);
}

/// Rewrites `count` words of `to`, which is another buffer than `from`, and counts itself.
GCR_KERNEL gcr_stencil_step(Word* to, const Word* from, Word from_words, Word first, Word count,
                            Word step) {
  if (first_of_thread() == 0) ++gcr_stencil_steps;
  for (Word i = first + first_of_thread(); i < first + count; i += threads()) {
    const Word left = i % from_words;
    const Word right = left + 1 == from_words ? 0 : left + 1;
    to[i] = rotate(to[i]) * 0xd1342543de82ef95 + (from[left] ^ (from[right] >> 3)) + step;
  }
}

/// Adds a checksum, in which the words count from `seed` on, to *sum.
GCR_KERNEL gcr_stencil_checksum(const Word* from, Word words, Word seed, Word* sum) {
  Word own = 0;
  for (Word i = first_of_thread(); i < words; i += threads()) own += weighed(from[i], i + seed);
  add(sum, own);
}

/// Of the scribbler's table. With the seed 0 it is full of zeros.
struct Piece {
  Word* at;
  Word words;
  Word seed;

  GCR_DEVICE Word word(Word index) const { return seed == 0 ? 0 : word_of(seed, index); }
};

/// Writes every piece of the table. A block works on one at a time.
GCR_KERNEL gcr_scribble(const Piece* table, Word pieces) {
  for (Word n = GCR_BLOCK; n < pieces; n += GCR_BLOCKS) {
    const Piece piece = table[n];
    for (Word i = GCR_THREAD; i < piece.words; i += GCR_THREADS) piece.at[i] = piece.word(i);
  }
}

/// Adds to result[0] how many words are not what the table says, and to result[1] a checksum over
/// all words that are there.
GCR_KERNEL gcr_scribble_check(const Piece* table, Word pieces, Word* result) {
  Word wrong = 0;
  Word sum = 0;
  for (Word n = GCR_BLOCK; n < pieces; n += GCR_BLOCKS) {
    const Piece piece = table[n];
    for (Word i = GCR_THREAD; i < piece.words; i += GCR_THREADS) {
      const Word word = piece.at[i];
      wrong += word != piece.word(i) ? 1 : 0;
      sum += weighed(word, i + piece.seed);
    }
  }
  add(&result[0], wrong);
  add(&result[1], sum);
}

/// Waits until another process has made *word at least `value`. One thread.
GCR_KERNEL gcr_wait(const Word* word, Word value) {
  while (acquire(word) < value) wait_briefly();
}

/// One step of the ring (ring.h). `state` is { step, token, sum, wrong }; `inbox` and `outbox` hold
/// a message { step, token, payload of `words` words } for each rank, and step s uses message
/// s % ranks. No message is overwritten before it was read: a rank sends s + ranks only after all
/// others have read s. One block.
GCR_KERNEL gcr_ring_pass(Word* state, const Word* inbox, Word* outbox, Word ranks, Word rank,
                         Word words) {
  const bool first = GCR_THREAD == 0;
  const Word step = state[0] + 1;
  const Word sent = state[1];
  const Word message = step % ranks * (words + 2);
  const Word* in = inbox + message;
  Word* out = outbox + message;
  for (Word i = GCR_THREAD; i < words; i += GCR_THREADS) out[2 + i] = word_of(sent, i);
  if (first) out[1] = sent;
  fence();
  wait_for_block();
  Word arrived = step;
  if (first) {
    release(&out[0], step);
    while ((arrived = acquire(&in[0])) < step) wait_briefly();
  }
  wait_for_block();
  const Word received = in[1];
  Word wrong = arrived != step ? 1 : 0;
  for (Word i = GCR_THREAD; i < words; i += GCR_THREADS) {
    wrong += in[2 + i] != word_of(received, i) ? 1 : 0;
  }
  add(&state[3], wrong);
  if (!first) return;
  const Word token = rotate(received) * 0xd1342543de82ef95 + rank + 1;
  state[0] = step;
  state[1] = token;
  state[2] = state[2] * 6364136223846793005 + token;
}
