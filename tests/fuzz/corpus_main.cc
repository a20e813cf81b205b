// Feeds a target its seeds, and every file below the directories that are its arguments. Each input
// is placed once at the end of its memory and once at the beginning: a read beyond either crashes.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/input.h"

namespace {

/// Memory between two inaccessible pages.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t size)
      : size_((size + page() - 1) / page() * page()),
        whole_(static_cast<std::uint8_t*>(
            ::mmap(nullptr, size_ + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    gcr::fuzz::require(whole_ != MAP_FAILED, "there is memory");
    gcr::fuzz::require(::mprotect(begin(), size_, PROT_READ | PROT_WRITE) == 0 || size_ == 0,
                       "memory can be made readable");
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() { ::munmap(whole_, size_ + 2 * page()); }

  std::uint8_t* begin() const { return whole_ + page(); }
  std::uint8_t* end() const { return begin() + size_; }

 private:
  static std::size_t page() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

  std::size_t size_;
  std::uint8_t* whole_;
};

void feed(const std::string& input) {
  const GuardedMemory memory(input.size());
  for (std::uint8_t* const at : {memory.begin(), memory.end() - input.size()}) {
    std::copy(input.begin(), input.end(), at);
    LLVMFuzzerTestOneInput(at, input.size());
  }
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
      std::cout << entry.path() << std::endl;  // the last one, at which it ended
      feed(input);
      ++fed;
    }
  }
  feed("");
  std::cout << fed << " inputs\n";
}
