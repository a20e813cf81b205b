// The door's answers about a program's own memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/preload/door/door_helpers.h"

namespace gcr::test {
namespace {

using testing::IsEmpty;
using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

Ranges registered(gpu::Door& door) {
  Ranges ranges;
  for (const auto& one : good(door.registered_memory())) {
    ranges.emplace_back(one.address, one.bytes);
  }
  return ranges;
}

class DoorMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    subject_.ask("init");
    subject_.ask("primary 0");
  }
  Subject subject_;
};

TEST_F(DoorMemoryTest, UserfaultfdIsFreshAndOnlyAtTheAgent) {
  gpu::Door door = door_of(subject_);
  const UniqueFd given = good(door.watch_memory());
  char kind[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(given.get());
  ASSERT_GT(::readlink(link.c_str(), kind, sizeof(kind) - 1), 0);
  EXPECT_STREQ(kind, "anon_inode:[userfaultfd]");
  uffdio_api api{};
  api.api = UFFD_API;
  EXPECT_EQ(::ioctl(given.get(), UFFDIO_API, &api), 0);
  // The library has closed its own by the time that it answers the next request.
  good(door.hello());
  for (const procfs::DescriptorLink& one : procfs::descriptor_links(subject_.pid())) {
    EXPECT_NE(one.link, kind);
  }
}

TEST_F(DoorMemoryTest, EachRequestReturnsANewUserfaultfd) {
  gpu::Door door = door_of(subject_);
  std::vector<UniqueFd> given;
  for (int i = 0; i < 100; ++i) {
    given.push_back(good(door.watch_memory()));
    uffdio_api api{};
    api.api = UFFD_API;
    EXPECT_EQ(::ioctl(given.back().get(), UFFDIO_API, &api), 0);
  }
}

TEST_F(DoorMemoryTest, RegisteredMemoryIsListedUntilUnregistered) {
  gpu::Door door = door_of(subject_);
  EXPECT_THAT(registered(door), IsEmpty());
  const std::uint64_t first = subject_.value(command("register", 3 * kMiB));
  const std::uint64_t second = subject_.value(command("register", kMiB));
  const Ranges both = first < second ? Ranges{{first, 3 * kMiB}, {second, kMiB}}
                                     : Ranges{{second, kMiB}, {first, 3 * kMiB}};
  EXPECT_EQ(registered(door), both);
  subject_.ask(command("unregister", first));
  EXPECT_EQ(registered(door), (Ranges{{second, kMiB}}));
}

TEST_F(DoorMemoryTest, SecondRegistrationFailsButStaysListed) {
  gpu::Door door = door_of(subject_);
  const std::uint64_t at = subject_.value(command("register", kMiB));
  EXPECT_NE(subject_.answer(command("register_again", at, kMiB)).substr(0, 2), "ok");
  EXPECT_EQ(registered(door), (Ranges{{at, kMiB}}));
  EXPECT_NE(subject_.answer(command("unregister", at + 4096)).substr(0, 2), "ok");
  EXPECT_EQ(registered(door), (Ranges{{at, kMiB}}));
}

TEST_F(DoorMemoryTest, RefusedRegistrationIsNotListed) {
  gpu::Door door = door_of(subject_);
  EXPECT_NE(subject_.answer(command("register_again", 4096, 0)).substr(0, 2), "ok");
  EXPECT_THAT(registered(door), IsEmpty());
}

TEST_F(DoorMemoryTest, AnyNumberOfRegistrationsIsListed) {
  gpu::Door door = door_of(subject_);
  Ranges expected;
  for (int i = 0; i < 2 * static_cast<int>(door::kMaxEntries) + 1; ++i) {
    expected.emplace_back(subject_.value(command("register", 64 << 10)), 64 << 10);
  }
  std::ranges::sort(expected);
  EXPECT_EQ(registered(door), expected);
}

}  // namespace
}  // namespace gcr::test
