// Prints a line for each step of a library that fills the program's GPU memory and calls the driver
// itself: opened with RTLD_DEEPBIND ("deep") or in a namespace of its own ("namespace"), where it
// has another driver and is not called. With FILE it is opened when that exists, and makes
// FILE.opened.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "tests/apps/driver.h"
#include "tests/apps/pace.h"

namespace {

void* open_library(const char* path, bool deep) {
  void* const library = deep ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
                             : dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
  if (library == nullptr) gcr::apps::fail("open the library", dlerror());
  return library;
}

void open_later(const char* path, const std::string& when) {
  while (::access(when.c_str(), F_OK) != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  open_library(path, false);
  std::ofstream(when + ".opened");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    gcr::apps::fail("start", "usage: past_gate deep|namespace LIBRARY [FILE]");
  }
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const bool deep = std::strcmp(argv[1], "deep") == 0;
  const gcr::apps::Gpu gpu(0);
  const CUdeviceptr memory = gpu.allocate(kBytes);
  int (*step)(CUdeviceptr, unsigned) = nullptr;
  if (argc == 4) {
    std::thread(open_later, argv[2], argv[3]).detach();
  } else if (void* const library = open_library(argv[2], deep); deep) {
    const auto open = reinterpret_cast<int (*)()>(dlsym(library, "deep_open"));
    if (open() != 0) gcr::apps::fail("start", "the library cannot use the GPU");
    step = reinterpret_cast<decltype(step)>(dlsym(library, "deep_step"));
  }
  gcr::apps::Pace pace(10);
  for (unsigned n = 0; !gcr::apps::termination_requested(); ++n) {
    pace.begin_step();
    const int result = deep ? step(memory, n) : 0;
    const auto last = static_cast<std::uint32_t>(gpu.read_word(memory + kBytes - 8));
    std::printf("step %u result %d value %u\n", n, result, deep ? last - n : 0);
    std::fflush(stdout);
    pace.end_step();
  }
}
