// Parts of one mapping are written to before a dump, so that they can be merged again later.
#include "migrate-agent/process/pages/private_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "migrate-agent/process/pages/page_scan.h"
#include "src/base/units.h"

namespace gcr::process::test {
namespace {

constexpr std::uint64_t kPieceBytes = kMiB;
constexpr std::uint64_t kPiecePages = kPieceBytes / 4096;

/// A stopped child with a row of pieces of its memory, a letter for each: w is written to; r, x and
/// n were never, and may now be read, executed, or neither; g is a guard page as threads have, s is
/// shared memory, and a dot is a gap.
class Row {
 public:
  explicit Row(std::string pieces) : pieces_(std::move(pieces)) {
    at_ =
        static_cast<char*>(::mmap(nullptr, bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    child_ = ::fork();
    if (child_ == 0) live();
    int status = 0;
    EXPECT_EQ(::waitpid(child_, &status, WUNTRACED), child_);
    EXPECT_TRUE(WIFSTOPPED(status)) << status;
  }
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;
  ~Row() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    ::munmap(at_, bytes());
  }

  pid_t child() const { return child_; }

  /// How many pages of each piece are present.
  std::vector<std::uint64_t> pages() const {
    std::vector<std::uint64_t> found;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const auto start = reinterpret_cast<std::uintptr_t>(piece(i));
      found.push_back(bytes_of(present_pages(child_, {{start, start + kPieceBytes}}).value()) /
                      4096);
    }
    return found;
  }

 private:
  std::size_t bytes() const { return pieces_.size() * kPieceBytes; }
  char* piece(std::size_t i) const { return at_ + i * kPieceBytes; }

  [[noreturn]] void live() const {
    const auto map = [](char* at, std::size_t bytes, int protection, int sharing) {
      if (::mmap(at, bytes, protection, sharing | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        ::_exit(1);
      }
    };
    map(at_, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE);
    ::madvise(at_, bytes(), MADV_NOHUGEPAGE);  // a huge page is larger than a piece
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      switch (pieces_[i]) {
        case 'w':
          std::memset(piece(i), 1, kPieceBytes);
          break;
        case 'r':
          ::mprotect(piece(i), kPieceBytes, PROT_READ);
          break;
        case 'x':
          ::mprotect(piece(i), kPieceBytes, PROT_READ | PROT_EXEC);
          break;
        case 'n':
          ::mprotect(piece(i), kPieceBytes, PROT_NONE);
          break;
        case 'g':
          map(piece(i), kPieceBytes, PROT_NONE, MAP_PRIVATE);
          break;
        case 's':
          map(piece(i), kPieceBytes, PROT_READ | PROT_WRITE, MAP_SHARED);
          break;
        default:
          ::munmap(piece(i), kPieceBytes);
      }
    }
    ::raise(SIGSTOP);
    ::_exit(0);
  }

  const std::string pieces_;
  char* at_ = nullptr;
  pid_t child_ = -1;
};

/// The pages of each piece after keep_joinable().
std::vector<std::uint64_t> kept_joinable(const std::string& pieces) {
  const Row row(pieces);
  PrivateMemory(row.child()).keep_joinable(row.child());
  return row.pages();
}

using Pages = std::vector<std::uint64_t>;
constexpr std::uint64_t kAll = kPiecePages;

TEST(KeepJoinable, OnePageIsWrittenBetweenWrittenMappings) {
  EXPECT_EQ(kept_joinable("wrw"), (Pages{kAll, 1, kAll}));
  EXPECT_EQ(kept_joinable("wxw"), (Pages{kAll, 1, kAll}));
  EXPECT_EQ(kept_joinable("wnw"), (Pages{kAll, 1, kAll}));
  EXPECT_EQ(kept_joinable("wrnxwrw"), (Pages{kAll, 1, 1, 1, kAll, 1, kAll}));
}

TEST(KeepJoinable, OuterAndSeparateMappingsAreLeftAlone) {
  EXPECT_EQ(kept_joinable("rw.wr"), (Pages{0, kAll, 0, kAll, 0}));
  EXPECT_EQ(kept_joinable("wgw"), (Pages{kAll, 0, kAll}));
  EXPECT_EQ(kept_joinable("wrgrw"), (Pages{kAll, 0, 0, 0, kAll}));
  EXPECT_EQ(kept_joinable("wrsrw"), (Pages{kAll, 0, 0, 0, kAll}));
  EXPECT_EQ(kept_joinable("wr.rw"), (Pages{kAll, 0, 0, 0, kAll}));
}

TEST(KeepJoinable, MappingsStayTheSame) {
  const Row row("wrwnw");
  const auto before = read_mappings(row.child()).value();
  PrivateMemory(row.child()).keep_joinable(row.child());
  const auto after = read_mappings(row.child()).value();
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(after[i].range, before[i].range);
    EXPECT_EQ(after[i].plain, before[i].plain);
  }
}

}  // namespace
}  // namespace gcr::process::test
