// What CRIU leaves out of a stopped process, and what of it is sent.
#include "migrate-agent/migration/source/stopped_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/address_ranges.h"
#include "src/base/units.h"

namespace gcr::migration::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kBytes = 8 * kMiB;

/// Remembers the pages that it was given, by the names of images.
class RememberingSink : public images::Sink {
 public:
  Status take(const std::string& name, UniqueFd) override {
    const std::lock_guard lock(mutex_);
    files.insert(name);
    return {};
  }

  Status take_memory(const std::string& name, std::span<const AddressRange> ranges,
                     const ReadMemory& read, bool last) override {
    EXPECT_TRUE(last);
    for (const AddressRange& range : ranges) {
      for (std::uint64_t at = range.start; at < range.end; at += kPage) {
        std::string page(kPage, '\0');
        GCR_TRY(read(at, std::as_writable_bytes(std::span(page))));
        const std::lock_guard lock(mutex_);
        EXPECT_TRUE(pages[name].emplace(at, page).second) << "sent twice";
      }
    }
    return {};
  }

  Result<images::SentImages> finish() override { return images::SentImages{}; }

  std::map<std::string, std::map<std::uint64_t, std::string>> pages;
  std::set<std::string> files;

 private:
  std::mutex mutex_;
};

/// A child with 8 MiB of its own and 8 MiB to share, in stopped state.
class StoppedMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    shared_ = map(MAP_SHARED);
    child_ = ::fork();
    if (child_ == 0) {
      own_ = map(MAP_PRIVATE);
      std::memset(own_, 'p', kBytes);
      std::memset(shared_, 's', kBytes);
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    ASSERT_TRUE(procfs::wait_until_stopped(child_));
  }

  void TearDown() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    ::munmap(shared_, kBytes);
  }

  static void* map(int kind) {
    return ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
  }

  static Status refuse(pid_t) { return Error(Code::kPermissionDenied, "it is another user's"); }

  std::string name() const { return criu::images::memory_images(child_); }

  void* own_ = nullptr;
  void* shared_ = nullptr;
  pid_t child_ = -1;
  std::vector<Member*> no_members_;
  ChangedMemory changed_{::getpid(), no_members_};
  RememberingSink sink_;
};

TEST_F(StoppedMemoryTest, ChosenMemoryIsSentOnce) {
  criu::LeftOut left_out;
  {
    StoppedMemory memory(child_, {}, changed_, {}, sink_);
    ASSERT_TRUE(memory.open());
    left_out = memory.choose(child_);
    EXPECT_EQ(memory.choose(child_).ranges, left_out.ranges) << "CRIU may ask twice";
  }
  EXPECT_GE(bytes_of(left_out.ranges), kBytes);
  const auto& pages = sink_.pages[name()];
  EXPECT_GE(pages.size() * kPage, kBytes);
  const auto is_own = [](const auto& page) { return page.second == std::string(kPage, 'p'); };
  EXPECT_EQ(std::ranges::count_if(pages, is_own), kBytes / kPage);
}

TEST_F(StoppedMemoryTest, OnlyMissingMemoryIsSentAtTheEnd) {
  StoppedMemory memory(child_, {}, changed_, {}, sink_);
  ASSERT_TRUE(memory.open());
  const AddressRanges mappings = memory.choose(child_).ranges;
  ASSERT_TRUE(memory.take(name(), child_, {}));
  AddressRanges sent;
  for (const auto& [page, content] : sink_.pages[name()]) append(sent, {page, page + kPage});
  const AddressRange missing = difference(mappings, sent).front();
  ASSERT_TRUE(memory.take(name(), child_, mappings)) << "the sink notices what comes twice";
  EXPECT_TRUE(sink_.pages[name()].contains(missing.start));
}

TEST_F(StoppedMemoryTest, SharedMemoryIsSentWithAMapOfItsPages) {
  StoppedMemory memory(child_, {}, changed_, {}, sink_);
  ASSERT_TRUE(memory.open());
  const criu::LeftOut left_out = memory.choose(child_);
  ASSERT_EQ(left_out.shared.size(), 1u);
  ASSERT_TRUE(memory.send_shared_maps());
  const auto inode = static_cast<std::uint32_t>(left_out.shared.front().inode);
  EXPECT_THAT(sink_.files, ElementsAre(criu::images::shared_memory_map(inode)));
  const auto& pages = sink_.pages[criu::images::shared_memory_images(inode)];
  EXPECT_EQ(pages.size() * kPage, kBytes);
  EXPECT_EQ(pages.begin()->second, std::string(kPage, 's'));
}

TEST_F(StoppedMemoryTest, UnreadableSharedMemoryGoesThroughCriu) {
  StoppedMemory memory(child_, {}, changed_, refuse, sink_);
  ASSERT_TRUE(memory.open());
  EXPECT_THAT(memory.choose(child_).shared, IsEmpty());
  EXPECT_TRUE(memory.send_shared_maps());
  EXPECT_THAT(sink_.files, IsEmpty());
}

TEST_F(StoppedMemoryTest, EarlySendingErrorIsReturnedAtTheEnd) {
  StoppedMemory memory(child_, {}, changed_, refuse, sink_);
  const criu::LeftOut left_out = memory.choose(child_);  // without open(): it is asked
  const Status taken = memory.take(name(), child_, left_out.ranges);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(sink_.pages, IsEmpty());
}

}  // namespace
}  // namespace gcr::migration::test
