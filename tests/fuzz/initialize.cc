#include <spdlog/spdlog.h>

#include <filesystem>
#include <fstream>

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  spdlog::set_level(spdlog::level::off);  // most inputs are refused
  if (*argc != 3 || std::string_view((*argv)[1]) != "--write-seeds") return 0;
  const std::filesystem::path directory((*argv)[2]);
  std::filesystem::create_directories(directory);
  int number = 0;
  for (const std::string& seed : gcr::fuzz::seeds()) {
    std::ofstream file(directory / ("seed-" + std::to_string(++number)), std::ios::binary);
    file << seed;
    if (!file.flush()) std::exit(1);
  }
  std::exit(0);
}
