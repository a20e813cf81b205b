// Writes to the memory of this process, tracked.
#include "migrate-agent/process/pages/write_tracker.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "migrate-agent/process/pages/mappings.h"
#include "migrate-agent/process/pages/page_scan.h"

namespace gcr::process::test {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kPages = kTrackedFrom / kPage;

std::uint64_t number_of(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

UniqueFd open_userfaultfd() {
  return UniqueFd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
}

/// Private memory between two inaccessible pages, so that it is a mapping of its own.
class Memory {
 public:
  explicit Memory(std::uint64_t pages = kPages, bool filled = true) : pages_(pages) {
    void* const all =
        ::mmap(nullptr, (pages + 2) * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at_ = static_cast<unsigned char*>(all) + kPage;
    EXPECT_EQ(::mprotect(at_, pages * kPage, PROT_READ | PROT_WRITE), 0);
    if (filled) std::memset(at_, 1, pages * kPage);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { ::munmap(at_ - kPage, (pages_ + 2) * kPage); }

  void* page(std::uint64_t page) const { return at_ + page * kPage; }
  void write(std::uint64_t number) const {
    static_cast<volatile unsigned char*>(page(number))[7] = 9;
  }
  AddressRange range() const { return pages(0, pages_); }
  AddressRange pages(std::uint64_t first, std::uint64_t count) const {
    return {number_of(page(first)), number_of(page(first + count))};
  }

 private:
  std::uint64_t pages_;
  unsigned char* at_ = nullptr;
};

bool is_tracked(const AddressRange& range) {
  const auto mappings = read_mappings(::getpid());
  EXPECT_TRUE(mappings);
  return std::ranges::any_of(*mappings, [&](const MemoryMapping& one) {
    return one.tracked && one.range.start < range.end && range.start < one.range.end;
  });
}

class WriteTrackerTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto scan = PageScan::open(::getpid());
    AddressRanges none;
    if (!scan || !scan->find({}, {0, 4096}, none)) GTEST_SKIP() << "the kernel has no PAGEMAP_SCAN";
    auto tracker = WriteTracker::create(::getpid(), open_userfaultfd());
    ASSERT_TRUE(tracker) << tracker.error().message();
    tracker_.emplace(std::move(*tracker));
  }

  AddressRanges round(const AddressRanges& mappings) {
    const auto pages = tracker_->round(mappings);
    EXPECT_TRUE(pages);
    return pages ? *pages : AddressRanges();
  }

  /// The ranges read in the last round.
  AddressRanges last(const AddressRanges& mappings) {
    const auto present = present_pages(::getpid(), mappings);
    EXPECT_TRUE(present);
    const auto pages = tracker_->last_round(mappings, *present);
    EXPECT_TRUE(pages);
    return pages ? *pages : AddressRanges();
  }

  /// Repeats rounds until nothing has to be read.
  void settle(const AddressRanges& mappings) {
    EXPECT_EQ(round(mappings), mappings);
    EXPECT_EQ(round(mappings), mappings) << "all was new in the round before";
    EXPECT_EQ(last(mappings), AddressRanges());
  }

  std::optional<WriteTracker> tracker_;
};

TEST_F(WriteTrackerTest, WrittenPageIsReadInTwoRounds) {
  const Memory memory;
  const AddressRanges all{memory.range()};
  settle(all);
  memory.write(5);
  const AddressRanges written{memory.pages(5, 1)};
  EXPECT_EQ(last(all), written);
  EXPECT_EQ(round(all), written);
  EXPECT_EQ(last(all), written);
  EXPECT_EQ(round(all), written);
  EXPECT_EQ(round(all), AddressRanges());
  EXPECT_EQ(last(all), AddressRanges());
}

TEST_F(WriteTrackerTest, EachOfManyScatteredPagesIsReadOnce) {
  // The kernel reports 512 ranges at a time, and a request asks for 1,024.
  const Memory memory(10240);
  const AddressRanges all{memory.range()};
  settle(all);
  AddressRanges written;
  for (std::uint64_t page = 0; page < 10240; page += 2) {
    memory.write(page);
    written.push_back(memory.pages(page, 1));
    if (written.size() % 512 <= 1) {
      EXPECT_EQ(last(all), written);
    }
  }
  EXPECT_EQ(last(all), written);
  EXPECT_EQ(round(all), written);
}

TEST_F(WriteTrackerTest, WritesByTheKernelAreSeen) {
  const Memory memory;
  const AddressRanges all{memory.range()};
  settle(all);
  const UniqueFd zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::read(zeros.get(), memory.page(3), 10), 10);
  const UniqueFd own(::open("/proc/self/mem", O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::pwrite(own.get(), "hello", 5, static_cast<off_t>(number_of(memory.page(6)))), 5);
  char text[] = "hello";
  const iovec from{text, 5};
  const iovec to{memory.page(9), 5};
  ASSERT_EQ(::process_vm_writev(::getpid(), &from, 1, &to, 1, 0), 5);
  EXPECT_EQ(last(all), (AddressRanges{memory.pages(3, 1), memory.pages(6, 1), memory.pages(9, 1)}));
}

TEST_F(WriteTrackerTest, ReleasedAndRewrittenMemoryIsRead) {
  const Memory memory;
  const AddressRanges all{memory.range()};
  settle(all);
  ASSERT_EQ(::madvise(memory.page(10), 3 * kPage, MADV_DONTNEED), 0);
  memory.write(11);
  EXPECT_EQ(*static_cast<const volatile unsigned char*>(memory.page(12)), 0);
  // A page that was only read maps the kernel's zero page or a page of its own: the kernel chooses.
  const auto there = present_pages(::getpid(), {memory.pages(10, 3)});
  ASSERT_TRUE(there);
  EXPECT_EQ(intersection(*there, {memory.pages(10, 2)}), AddressRanges{memory.pages(11, 1)});
  EXPECT_EQ(last(all), *there);
  EXPECT_EQ(round(all), *there);
}

TEST_F(WriteTrackerTest, NewlyWrittenPagesAreRead) {
  const Memory memory(kPages, false);
  const AddressRanges all{memory.range()};
  memory.write(1);
  EXPECT_EQ(round(all), AddressRanges{memory.pages(1, 1)});
  EXPECT_EQ(round(all), AddressRanges{memory.pages(1, 1)});
  memory.write(2);
  EXPECT_EQ(last(all), AddressRanges{memory.pages(2, 1)});
  EXPECT_EQ(present_pages(::getpid(), all).value(), AddressRanges{memory.pages(1, 2)})
      << "nothing else has changed";
}

TEST_F(WriteTrackerTest, ReplacedMappingIsReadEveryRound) {
  const Memory memory(2 * kPages);
  settle({memory.range()});
  void* const part = memory.page(kPages / 2);
  ASSERT_EQ(::mmap(part, kPages * kPage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            part);
  std::memset(part, 2, 3 * kPage);
  const AddressRanges mappings{memory.pages(0, kPages / 2), memory.pages(kPages / 2, kPages),
                               memory.pages(kPages / 2 + kPages, kPages / 2)};
  const AddressRanges replaced{memory.pages(kPages / 2, 3)};
  EXPECT_EQ(last(mappings), replaced);
  EXPECT_EQ(round(mappings), replaced);
  EXPECT_EQ(round(mappings), replaced);
  EXPECT_EQ(last(mappings), replaced);
  memory.write(0);
  EXPECT_EQ(last(mappings), (AddressRanges{memory.pages(0, 1), replaced.front()}));
}

TEST_F(WriteTrackerTest, NewPartOfAGrownMappingIsRead) {
  const Memory room(3 * kPages, false);
  ASSERT_EQ(::munmap(room.page(kPages), 2 * kPages * kPage), 0);
  std::memset(room.page(0), 1, kPages * kPage);
  settle({room.pages(0, kPages)});
  ASSERT_EQ(::mremap(room.page(0), kPages * kPage, 3 * kPages * kPage, 0), room.page(0));
  room.write(kPages + 3);
  const AddressRanges all{room.range()};
  EXPECT_EQ(last(all), AddressRanges{room.pages(kPages + 3, 1)});
  EXPECT_EQ(round(all), AddressRanges{room.pages(kPages + 3, 1)});
  EXPECT_EQ(round(all), AddressRanges{room.pages(kPages + 3, 1)});
  EXPECT_EQ(last(all), AddressRanges());
  room.write(2 * kPages + 1);
  EXPECT_EQ(last(all), AddressRanges{room.pages(2 * kPages + 1, 1)});
}

TEST_F(WriteTrackerTest, MovedMappingIsReadAtItsNewAddress) {
  const Memory memory;
  const Memory room(kPages, false);
  settle({memory.range()});
  ASSERT_EQ(::mremap(memory.page(0), kPages * kPage, kPages * kPage, MREMAP_MAYMOVE | MREMAP_FIXED,
                     room.page(0)),
            room.page(0));
  const AddressRanges all{room.range()};
  EXPECT_EQ(last(all), all);
  EXPECT_EQ(round(all), all);
  room.write(4);  // whether a protection was inherited or not
  EXPECT_EQ(round(all), all);
  EXPECT_NE(last(all), all);
  room.write(5);
  const AddressRanges found = intersection(last(all), {room.pages(5, 1)});
  EXPECT_EQ(found, AddressRanges{room.pages(5, 1)});
}

TEST_F(WriteTrackerTest, MprotectByTheProgramChangesNothing) {
  const Memory memory;
  const AddressRanges all{memory.range()};
  settle(all);
  ASSERT_EQ(::mprotect(memory.page(8), 2 * kPage, PROT_NONE), 0);
  ASSERT_EQ(::mprotect(memory.page(8), 2 * kPage, PROT_READ | PROT_WRITE), 0);
  memory.write(9);
  EXPECT_EQ(last(all), AddressRanges{memory.pages(9, 1)});
}

TEST_F(WriteTrackerTest, ForkKeepsTheParentTrackedButNotTheChild) {
  const Memory memory;
  const AddressRanges all{memory.range()};
  settle(all);
  const pid_t child = ::fork();
  if (child == 0) {
    memory.write(1);
    bool tracked = false;
    const auto mappings = read_mappings(::getpid());
    for (const MemoryMapping& one : *mappings) tracked |= one.tracked;
    ::_exit(tracked ? 1 : 0);
  }
  memory.write(2);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(last(all), AddressRanges{memory.pages(2, 1)});
}

TEST_F(WriteTrackerTest, WriteToAHugePageIsSeen) {
  constexpr std::uint64_t kHugePages = 512;
  const Memory room(5 * kHugePages, false);
  const std::uint64_t first = (kHugePages - number_of(room.page(0)) / kPage % kHugePages);
  ASSERT_EQ(::madvise(room.page(0), 5 * kHugePages * kPage, MADV_HUGEPAGE), 0);
  std::memset(room.page(0), 1, 5 * kHugePages * kPage);
  const AddressRanges all{room.range()};
  settle(all);
  room.write(first + 3);
  EXPECT_EQ(last(all), AddressRanges{room.pages(first + 3, 1)});
}

TEST_F(WriteTrackerTest, SmallMappingsAreReadEveryRound) {
  const Memory memory(kPages - 1);
  const AddressRanges all{memory.range()};
  EXPECT_EQ(round(all), all);
  EXPECT_EQ(round(all), all);
  EXPECT_EQ(last(all), all);
  EXPECT_FALSE(is_tracked(memory.range()));
}

TEST_F(WriteTrackerTest, DistrustedPagesAreReadEveryRound) {
  const Memory memory;
  const AddressRanges all{memory.range()};
  settle(all);
  tracker_->distrust({memory.pages(4, 2)});
  EXPECT_EQ(last(all), AddressRanges{memory.pages(4, 2)});
  EXPECT_EQ(round(all), AddressRanges{memory.pages(4, 2)});
  EXPECT_EQ(round(all), AddressRanges{memory.pages(4, 2)});
}

TEST_F(WriteTrackerTest, MemoryOfTheProgramsUserfaultfdIsSkipped) {
  const Memory memory;
  const UniqueFd own = open_userfaultfd();
  uffdio_api api{};
  api.api = UFFD_API;
  ASSERT_EQ(::ioctl(own.get(), UFFDIO_API, &api), 0);
  uffdio_register request{};
  request.range = {memory.range().start, memory.range().bytes()};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  ASSERT_EQ(::ioctl(own.get(), UFFDIO_REGISTER, &request), 0);
  const AddressRanges all{memory.range()};
  EXPECT_EQ(round(all), all);
  EXPECT_EQ(round(all), all);
  EXPECT_EQ(last(all), all);
  EXPECT_TRUE(is_tracked(memory.range())) << "by its own";
}

TEST_F(WriteTrackerTest, ConstantlyWrittenPagesAreNotReprotected) {
  const Memory memory(64 * kPages);
  const AddressRanges all{memory.range()};
  settle(all);
  do {  // until it is fast enough to see
    std::this_thread::sleep_until(tracker_->rests_until());
    std::memset(memory.page(0), 3, memory.range().bytes());
    EXPECT_EQ(round(all), all);
    std::memset(memory.page(7), 4, 1);
    EXPECT_EQ(round(all), all);
  } while (WriteTracker::Clock::now() >= tracker_->rests_until());
  // All was read once more, and the page is still found.
  const AddressRanges written{memory.pages(7, 1)};
  EXPECT_EQ(last(all), written);
  EXPECT_EQ(tracker_->written_bytes(), 0u);
  std::this_thread::sleep_until(tracker_->rests_until());
  EXPECT_EQ(round(all), written);
  EXPECT_EQ(tracker_->written_bytes(), kPage);
}

TEST_F(WriteTrackerTest, NothingIsLeftInTheProcess) {
  const Memory memory;
  settle({memory.range()});
  EXPECT_TRUE(is_tracked(memory.range()));
  tracker_.reset();
  EXPECT_FALSE(is_tracked(memory.range()));
  memory.write(1);
}

TEST_F(WriteTrackerTest, OnlyAFreshUserfaultfdIsAccepted) {
  const auto outcome_of = [](UniqueFd fd) {
    const auto tracker = WriteTracker::create(::getpid(), std::move(fd));
    return tracker ? Code::kInternal : tracker.error().code();
  };
  EXPECT_EQ(outcome_of(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))), Code::kUnsupported);
  EXPECT_EQ(outcome_of(UniqueFd(::memfd_create("[userfaultfd]", MFD_CLOEXEC))), Code::kUnsupported);
  UniqueFd used = open_userfaultfd();
  uffdio_api api{};
  api.api = UFFD_API;
  ASSERT_EQ(::ioctl(used.get(), UFFDIO_API, &api), 0);
  EXPECT_EQ(outcome_of(std::move(used)), Code::kUnsupported);
}

TEST_F(WriteTrackerTest, UserfaultfdOfAnotherProcessTracksNothing) {
  const Memory memory;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(ends[1]);
    (void)!::read(ends[0], &byte, 1);
    ::_exit(0);
  }
  auto tracker = WriteTracker::create(child, open_userfaultfd());  // of this process
  ASSERT_TRUE(tracker);
  const AddressRanges all{memory.range()};
  for (int i = 0; i < 3; ++i) {
    const auto pages = tracker->round(all);
    ASSERT_TRUE(pages);
    EXPECT_EQ(*pages, all);
  }
  EXPECT_EQ(tracker->last_round(all, all).value(), all);
  ::close(ends[1]);
  ::close(ends[0]);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace gcr::process::test
