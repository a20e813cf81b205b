// A program with memory of every kind, much of it zeros, that executes commands of its standard
// input: one per line, answered by "ok" and numbers in hexadecimal.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

using Numbers = std::vector<std::uint64_t>;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 8 << 20;
constexpr std::size_t kSmall = 1 << 20;

unsigned char* map(std::size_t bytes, int flags, int fd = -1) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<unsigned char*>(at);
}

/// A mapping that cannot be merged with its neighbours.
unsigned char* map_apart(std::size_t bytes) {
  unsigned char* const all = map(bytes + 2 * kPage, MAP_PRIVATE | MAP_ANONYMOUS);
  if (all == nullptr || ::mprotect(all, kPage, PROT_NONE) != 0 ||
      ::mprotect(all + kPage + bytes, kPage, PROT_NONE) != 0) {
    return nullptr;
  }
  return all + kPage;
}

/// Memory whose contents are known.
struct Regions {
  unsigned char* zeros = nullptr;   ///< kBytes of zeros
  unsigned char* mixed = nullptr;   ///< kBytes; the last byte of every third page is not zero
  unsigned char* locked = nullptr;  ///< kSmall of zeros, as the rest
  unsigned char* shared = nullptr;
  unsigned char* file = nullptr;  ///< a private mapping of this program, all overwritten by zeros

  bool make() {
    zeros = map_apart(kBytes);
    mixed = map(kBytes, MAP_PRIVATE | MAP_ANONYMOUS);
    locked = map(kSmall, MAP_PRIVATE | MAP_ANONYMOUS);
    shared = map(kSmall, MAP_SHARED | MAP_ANONYMOUS);
    const int self = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    file = map(kPage, MAP_PRIVATE, self);
    ::close(self);
    if (!zeros || !mixed || !locked || !shared || !file) return false;
    std::memset(zeros, 0, kBytes);
    std::memset(mixed, 0, kBytes);
    std::memset(locked, 0, kSmall);
    std::memset(shared, 0, kSmall);
    std::memset(file, 0, kPage);
    for (std::size_t at = kPage - 1; at < kBytes; at += 3 * kPage) mixed[at] = 1;
    return ::mlock(locked, kSmall) == 0;
  }

  std::uint64_t wrong_bytes() const {
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < kBytes; ++i) {
      const bool marked = i % kPage == kPage - 1 && i / kPage % 3 == 0;
      wrong += (zeros[i] != 0) + (mixed[i] != (marked ? 1 : 0));
    }
    for (std::size_t i = 0; i < kSmall; ++i) wrong += (locked[i] != 0) + (shared[i] != 0);
    for (std::size_t i = 0; i < kPage; ++i) wrong += file[i] != 0;
    return wrong;
  }
};

/// Pages that are alternately zero and not, written by a thread without pause.
class Writer {
 public:
  void start() {
    words_ =
        reinterpret_cast<volatile std::uint64_t*>(map(kPages * kPage, MAP_PRIVATE | MAP_ANONYMOUS));
    thread_ = std::thread([this] {
      for (std::uint64_t round = 1; !stop_; ++round, ++rounds_) {
        for (std::size_t page = 0; page < kPages; ++page) word(page) = round;
        for (std::size_t page = 0; page < kPages; ++page) {
          if (word(page) != round) ++lost_;
          word(page) = 0;
        }
      }
    });
  }
  Numbers progress() const { return {rounds_, lost_}; }
  Numbers stop() {
    stop_ = true;
    thread_.join();
    return progress();
  }

 private:
  static constexpr std::size_t kPages = 64;
  volatile std::uint64_t& word(std::size_t page) { return words_[page * kPage / 8 + page]; }

  volatile std::uint64_t* words_ = nullptr;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<std::uint64_t> lost_{0};
};

Regions regions;
Writer writer;

bool init_cuda() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return false;
  const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(library, "cuInit"));
  return init != nullptr && init(0) == 0;
}

bool run(const std::string& command, Numbers& values) {
  if (command == "init") return init_cuda();
  if (command == "make") {
    if (!regions.make()) return false;
    for (const auto* region :
         {regions.zeros, regions.mixed, regions.locked, regions.shared, regions.file}) {
      values.push_back(reinterpret_cast<std::uintptr_t>(region));
    }
    return true;
  }
  if (command == "wrong") values.push_back(regions.wrong_bytes());
  if (command == "write") writer.start();
  if (command == "progress") values = writer.progress();
  if (command == "rest") values = writer.stop();
  return true;
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    Numbers values;
    std::cout << (run(line, values) ? "ok" : "error") << std::hex;
    for (const std::uint64_t value : values) std::cout << " 0x" << value;
    std::cout << std::endl;
  }
  ::_exit(0);
}
