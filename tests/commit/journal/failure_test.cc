// Disks that are full or fail: a small tmpfs, a limit on file sizes, and a kernel that answers EIO
// to fdatasync(). Each test runs in a child; its end removes everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <future>
#include <thread>

#include "migrate-agent/commit/journal/journal_files.h"
#include "src/base/unique_fd.h"
#include "tests/commit/journal/support.h"

namespace gcr::journal::test {
namespace {

using testing::HasSubstr;

class Failure : public testing::Test {
 protected:
  StateDir dir_;
};

/// A tmpfs at this path, visible to this process only.
void mount_small(const std::filesystem::path& path, const char* options) {
  ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
  ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  ASSERT_EQ(::mount("gcr-test", path.c_str(), "tmpfs", 0, options), 0);
}

void fill_up(const std::filesystem::path& directory) {
  std::ofstream file(directory / "full", std::ios::binary);
  const std::string page(4096, 'x');
  while (file.write(page.data(), 4096).flush()) {
  }
}

TEST_F(Failure, FullDiskPreventsANewJournal) {
  in_child([this] {
    mount_small(dir_.path(), "size=64k");
    const auto journal =
        Journal::create(dir_.path(), Uuid::random(), Began::SOURCE, source_began());
    EXPECT_EQ(journal.error().code(), Code::kResourceExhausted);
    EXPECT_THAT(journal.error().message(), HasSubstr("No space left on device"));
    EXPECT_TRUE(std::filesystem::is_empty(directory_of(dir_.path())));
  });
}

TEST_F(Failure, JournalSurvivesADiskThatFillsUpLater) {
  in_child([this] {
    mount_small(dir_.path(), "size=1m");
    Journal journal = begin(dir_.path());
    fill_up(dir_.path());
    while (journal.records().size() < kSlots - 1) {
      const Status appended = journal.append(keeper_started(5));
      ASSERT_TRUE(appended) << appended.error().message();
    }
    EXPECT_EQ(read(journal.path()).value().records.size(), kSlots - 1);
  });
}

TEST_F(Failure, MissingInodePreventsANewJournal) {
  in_child([this] {
    mount_small(dir_.path(), "nr_inodes=2");
    const auto journal =
        Journal::create(dir_.path(), Uuid::random(), Began::SOURCE, source_began());
    EXPECT_EQ(journal.error().code(), Code::kResourceExhausted);
    EXPECT_TRUE(list(dir_.path()).value().empty());
  });
}

/// Files of this process cannot grow beyond this size.
void limit_files_to(rlim_t bytes) {
  ASSERT_NE(::signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  limit.rlim_cur = bytes;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST_F(Failure, PartlyWrittenRecordIsUndone) {
  for (const rlim_t written : {0, 1, 100, 4095}) {
    in_child([&] {
      Journal journal = begin(dir_.path());
      ASSERT_TRUE(journal.append(keeper_started(5)));
      const auto before = bytes_of(journal.path());
      limit_files_to(3 * kSlotBytes + written);
      const Status appended = journal.append(committed());
      EXPECT_EQ(appended.error().code(), Code::kIo);
      EXPECT_THAT(appended.error().message(), HasSubstr("File too large"));
      EXPECT_FALSE(journal.has(Record::kCommitted));
      EXPECT_EQ(bytes_of(journal.path()), before);
      limit_files_to(RLIM_INFINITY);
      EXPECT_TRUE(journal.append(aborted("the disk failed")));
      EXPECT_EQ(read(journal.path()).value().records.size(), 3u);
    });
  }
}

/// Answers every fdatasync() of this process from now on. Returns the descriptor that announces
/// them if `action` asks for one.
UniqueFd answer_syncs(unsigned action, unsigned flags) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, action),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  EXPECT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  const long result = ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
  EXPECT_GE(result, 0) << errno;
  return UniqueFd(flags == 0 ? -1 : static_cast<int>(result));
}

TEST_F(Failure, RecordThatCannotBeUndoneEndsTheJournal) {
  Uuid migration = Uuid::random();
  in_child([&] {
    Journal journal = begin(dir_.path(), migration);
    answer_syncs(SECCOMP_RET_ERRNO | EIO, 0);
    const Status appended = journal.append(committed());
    EXPECT_EQ(appended.error().code(), Code::kDataLoss);
    EXPECT_THAT(appended.error().message(),
                HasSubstr("the incomplete record could not be removed"));
    EXPECT_FALSE(journal.has(Record::kCommitted));
    const Status next = journal.append(aborted("failed"));
    EXPECT_EQ(next.error().code(), Code::kDataLoss);
    EXPECT_THAT(next.error().message(), HasSubstr("accepts no more records"));
    EXPECT_FALSE(read(journal.path()));  // a record that cannot be synced is not used
  });
  auto journal = Journal::open(path_of(dir_.path(), migration, Began::SOURCE), Lock::kTry);
  ASSERT_TRUE(journal) << journal.error().message();
  EXPECT_FALSE(journal->has(Record::kAborted));
  EXPECT_TRUE(journal->append(aborted("found like this")));
}

/// One call of fdatasync() that blocks until it is answered.
class WaitingSync {
 public:
  explicit WaitingSync(int listener) : listener_(listener) {
    EXPECT_EQ(::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call_), 0) << errno;
  }

  void fail() { answer({.id = call_.id, .val = 0, .error = -EIO, .flags = 0}); }
  void go_on() {
    answer({.id = call_.id, .val = 0, .error = 0, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE});
  }

 private:
  void answer(seccomp_notif_resp response) {
    EXPECT_EQ(::ioctl(listener_, SECCOMP_IOCTL_NOTIF_SEND, &response), 0) << errno;
  }

  int listener_;
  seccomp_notif call_{};
};

TEST_F(Failure, ReadersNeverSeeAnUndoneRecord) {
  in_child([this] {
    Journal journal = begin(dir_.path());
    const auto before = bytes_of(journal.path());
    const UniqueFd listener =
        answer_syncs(SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
    auto appended = std::async(std::launch::async, [&] { return journal.append(committed()); });
    WaitingSync of_append(listener.get());
    std::atomic<pid_t> reader = 0;
    auto seen = std::async(std::launch::async, [&] {
      reader = ::gettid();
      return read(journal.path());
    });
    const auto has_read = [&] {
      return seen.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    EXPECT_NE(bytes_of(journal.path()), before);  // the record is in the file already
    while (reader == 0) std::this_thread::yield();
    wait_until_in(reader, SYS_fcntl, has_read);
    EXPECT_FALSE(has_read());
    of_append.fail();
    WaitingSync(listener.get()).go_on();  // of the zeros over it
    EXPECT_EQ(appended.get().error().code(), Code::kIo);
    WaitingSync(listener.get()).go_on();  // of the reader
    EXPECT_EQ(seen.get().value().records.size(), 1u);
    EXPECT_EQ(bytes_of(journal.path()), before);
  });
}

TEST_F(Failure, RecordAfterAnUndoneOneIsGood) {
  in_child([this] {
    Journal journal = begin(dir_.path());
    const UniqueFd listener =
        answer_syncs(SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
    auto appended = std::async(std::launch::async, [&] {
      EXPECT_FALSE(journal.append(committed()));
      return journal.append(aborted("the disk failed"));
    });
    WaitingSync(listener.get()).fail();
    WaitingSync(listener.get()).go_on();
    WaitingSync(listener.get()).go_on();
    EXPECT_TRUE(appended.get());
    const Contents contents = parse(bytes_of(journal.path()));
    EXPECT_FALSE(contents.damage || contents.torn);
    ASSERT_EQ(contents.records.size(), 2u);
    EXPECT_TRUE(contents.records.back().has_aborted());
  });
}

}  // namespace
}  // namespace gcr::journal::test
