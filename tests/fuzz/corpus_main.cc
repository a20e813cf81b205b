// Feeds a target its seeds, and every file below the directories that are its arguments.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/input.h"

namespace {

void feed(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  LLVMFuzzerInitialize(&argc, &argv);
  int fed = 0;
  for (const std::string& seed : gcr::fuzz::seeds()) {
    feed(seed);
    ++fed;
  }
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string input{std::istreambuf_iterator<char>(file), {}};
      std::cout << entry.path() << std::endl;  // the last one is what it ended at
      feed(input);
      ++fed;
    }
  }
  feed("");
  std::cout << fed << " inputs\n";
}
