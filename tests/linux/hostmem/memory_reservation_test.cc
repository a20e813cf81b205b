// Migrations that rely on the same memory: the first one has it until it releases it or its process
// has ended.
#include "migrate-agent/linux/hostmem/memory_reservation.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace gcr::hostmem {
namespace {

namespace fs = std::filesystem;

class MemoryReservationTest : public testing::Test {
 protected:
  MemoryReservationTest() {
    std::string path = "/tmp/gcr-reservations-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("no directory");
    directory_ = path;
  }
  ~MemoryReservationTest() override { fs::remove_all(directory_); }

  std::unique_ptr<MemoryReservation> begin() {
    return std::move(MemoryReservation::create(directory_, [this] { return free_; }).value());
  }

  Memory reserved() const { return reserved_memory(directory_).value(); }

  fs::path directory_;
  Result<Memory> free_ = Memory{kSpareMemoryBytes + 10 * kGiB, 4 * kGiB};
};

TEST_F(MemoryReservationTest, SecondOneBeyondFreeMemoryIsRefused) {
  const auto first = begin();
  auto second = begin();
  ASSERT_TRUE(first->add({.ordinary_bytes = 6 * kGiB}));
  const Status refused = second->add({.ordinary_bytes = 6 * kGiB});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(reserved(), (Memory{.ordinary_bytes = 6 * kGiB}));
  EXPECT_TRUE(second->add({.ordinary_bytes = 4 * kGiB}));
}

TEST_F(MemoryReservationTest, ReleasedMemoryCanBeReservedAgain) {
  auto first = begin();
  const auto second = begin();
  ASSERT_TRUE(first->add({.ordinary_bytes = 6 * kGiB}));
  first.reset();
  EXPECT_TRUE(second->add({.ordinary_bytes = 10 * kGiB}));
}

TEST_F(MemoryReservationTest, MemoryInUseIsNotCountedTwice) {
  const auto first = begin();
  const auto second = begin();
  ASSERT_TRUE(first->add({.ordinary_bytes = 6 * kGiB}));
  free_->ordinary_bytes -= 5 * kGiB;
  ASSERT_TRUE(first->taken({.ordinary_bytes = 5 * kGiB}));
  EXPECT_EQ(reserved(), (Memory{.ordinary_bytes = kGiB}));
  EXPECT_FALSE(second->add({.ordinary_bytes = 4 * kGiB + 1}));
  EXPECT_TRUE(second->add({.ordinary_bytes = 4 * kGiB}));
}

TEST_F(MemoryReservationTest, ExcessOverHugepagesIsOrdinaryMemory) {
  const auto first = begin();
  ASSERT_TRUE(first->add({.ordinary_bytes = 9 * kGiB, .huge_bytes = 5 * kGiB}));
  EXPECT_FALSE(begin()->add({.huge_bytes = 2 * kMiB}));
  EXPECT_FALSE(begin()->add({.ordinary_bytes = 1}));
}

TEST_F(MemoryReservationTest, ImpossibleSizesAreRefused) {
  const auto first = begin();
  const std::uint64_t most = ~std::uint64_t{0};
  EXPECT_FALSE(first->add({.ordinary_bytes = most, .huge_bytes = most}));
  EXPECT_EQ(reserved(), Memory());
}

TEST_F(MemoryReservationTest, ReservationsEndWithTheirProcess) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto theirs = begin();
    const bool granted = theirs->add({.ordinary_bytes = 10 * kGiB}).has_value();
    (void)!::write(ready[1], granted ? "y" : "n", 1);
    for (;;) ::pause();
  }
  char granted = 0;
  ASSERT_EQ(::read(ready[0], &granted, 1), 1);
  EXPECT_EQ(granted, 'y');
  const auto ours = begin();
  EXPECT_FALSE(ours->add({.ordinary_bytes = kGiB}));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(ours->add({.ordinary_bytes = 10 * kGiB}));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(MemoryReservationTest, ChildDoesNotExtendAReservation) {
  int child_of_owner[2];
  ASSERT_EQ(::pipe(child_of_owner), 0);
  const pid_t owner = ::fork();
  ASSERT_GE(owner, 0);
  if (owner == 0) {
    const auto reservation = begin();
    if (!reservation->add({.ordinary_bytes = kGiB})) ::_exit(1);
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    ::_exit(::write(child_of_owner[1], &child, sizeof(child)) == sizeof(child) ? 0 : 1);
  }
  pid_t child = 0;
  ASSERT_EQ(::read(child_of_owner[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(owner), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(reserved(), Memory()) << "the owner has not been reaped yet";
  EXPECT_TRUE(fs::is_empty(directory_));
  ASSERT_EQ(::waitpid(owner, nullptr, 0), owner);
  ::kill(child, SIGKILL);
  for (const int end : child_of_owner) ::close(end);
}

TEST_F(MemoryReservationTest, FreeMemoryIsPlausible) {
  const auto free = free_memory();
  ASSERT_TRUE(free) << free.error().message();
  EXPECT_GT(free->ordinary_bytes, 0u);
}

}  // namespace
}  // namespace gcr::hostmem
