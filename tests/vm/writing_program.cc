// A program that constantly writes to a part of its memory and checks all of it.
//
// Usage: writing_program FILE PAGES WRITTEN
// It fills PAGES pages of 4 KiB, each with words of its own, then counts steps: step N writes page
// N % WRITTEN with words of N, checks some pages, all of them in turn, and appends "0 <N>" to FILE,
// in one write. A page that does not hold what was last written there ends the program with "wrong
// page <number>". The first line is "ready <its TID>".
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

constexpr std::uint64_t kWordsPerPage = 512;
constexpr std::uint64_t kPagesPerStep = 64;
constexpr timespec kPause{0, 1'000'000};

int output = -1;

void append(const std::string& line) {
  if (::write(output, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
}

/// A page's word after a step wrote the page; step 0 is the beginning.
std::uint64_t content(std::uint64_t page, std::uint64_t step, std::uint64_t word) {
  return (page + 1) * 0x9e3779b97f4a7c15U + step * kWordsPerPage + word;
}

class Memory {
 public:
  Memory(std::uint64_t pages, std::uint64_t written) : pages_(pages), written_(written) {
    void* const mapped = ::mmap(nullptr, pages * kWordsPerPage * sizeof(std::uint64_t),
                                PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) std::abort();
    words_ = static_cast<std::uint64_t*>(mapped);
    for (std::uint64_t page = 0; page < pages; ++page) write(page, 0);
  }

  void step(std::uint64_t number) {
    write(number % written_, number);
    for (std::uint64_t i = 0; i < kPagesPerStep; ++i) {
      check((number * kPagesPerStep + i) % pages_, number);
    }
  }

 private:
  void write(std::uint64_t page, std::uint64_t step) {
    for (std::uint64_t word = 0; word < kWordsPerPage; ++word) {
      words_[page * kWordsPerPage + word] = content(page, step, word);
    }
  }

  /// The last step up to `now` that wrote the page.
  std::uint64_t last_write(std::uint64_t page, std::uint64_t now) const {
    return page < written_ && page <= now ? now - (now - page) % written_ : 0;
  }

  void check(std::uint64_t page, std::uint64_t now) const {
    const std::uint64_t step = last_write(page, now);
    for (std::uint64_t word = 0; word < kWordsPerPage; ++word) {
      if (words_[page * kWordsPerPage + word] == content(page, step, word)) continue;
      append("wrong page " + std::to_string(page) + "\n");
      std::exit(1);
    }
  }

  std::uint64_t pages_;
  std::uint64_t written_;
  std::uint64_t* words_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  output = ::open(argv[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (output < 0) return 2;
  Memory memory(std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10));
  append("ready " + std::to_string(::getpid()) + "\n");
  for (std::uint64_t number = 1;; ++number) {
    memory.step(number);
    append("0 " + std::to_string(number) + "\n");
    ::nanosleep(&kPause, nullptr);
  }
}
