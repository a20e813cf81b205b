// Prints a line for each step of a library that fills the program's GPU memory and calls the driver
// itself: opened with RTLD_DEEPBIND ("deep") or in a namespace of its own ("namespace"), where it
// has another driver and is not called.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/apps/driver.h"
#include "tests/apps/pace.h"

int main(int argc, char** argv) {
  if (argc != 3) gcr::apps::fail("start", "usage: past_gate deep|namespace LIBRARY");
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const bool deep = std::strcmp(argv[1], "deep") == 0;
  const gcr::apps::Gpu gpu(0);
  const CUdeviceptr memory = gpu.allocate(kBytes);
  void* const library = deep ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
                             : dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW);
  if (library == nullptr) gcr::apps::fail("open the library", dlerror());
  const auto open = reinterpret_cast<int (*)()>(dlsym(library, "deep_open"));
  const auto step = reinterpret_cast<int (*)(CUdeviceptr, unsigned)>(dlsym(library, "deep_step"));
  if (deep && open() != 0) gcr::apps::fail("start", "the library cannot use the GPU");
  gcr::apps::Pace pace(10);
  for (unsigned n = 0; !gcr::apps::termination_asked(); ++n) {
    pace.begin_step();
    const int result = deep ? step(memory, n) : 0;
    const auto last = static_cast<std::uint32_t>(gpu.read_word(memory + kBytes - 8));
    std::printf("step %u result %d value %u\n", n, result, deep ? last - n : 0);
    std::fflush(stdout);
    pace.end_step();
  }
}
