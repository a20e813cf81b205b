// A disk that fails as Linux lets it fail: fdatasync() reports the error once, the page then counts
// as clean, and a later fdatasync() of it succeeds without a write. Records that the journal's next
// reader uses must survive a loss of power nevertheless.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "migrate-agent/commit/journal/journal_files.h"
#include "src/base/unique_fd.h"
#include "tests/commit/journal/support.h"

namespace gcr::journal::test {
namespace {

/// The disk below a file that the calling thread writes to, from now until the process ends.
class Disk {
 public:
  explicit Disk(std::filesystem::path file) : file_(std::move(file)), durable_(bytes_of(file_)) {
    std::promise<int> listener;
    server_ = std::thread([this, given = listener.get_future()]() mutable { serve(given.get()); });
    server_.detach();
    listener.set_value(listen());
  }

  /// The next write that reaches it fails when it is synced, and no later write succeeds.
  void break_down() { broken_ = true; }

  /// It works again; what it lost stays lost.
  void repair() { broken_ = false; }

  /// What a reader finds after a loss of power.
  Contents after_power_loss() {
    const std::lock_guard lock(mutex_);
    return parse(durable_);
  }

 private:
  static int listen() {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwrite64, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{std::size(program), program};
    EXPECT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    const long listener =
        ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
    EXPECT_GE(listener, 0) << errno;
    return static_cast<int>(listener);
  }

  void serve(int listener) {
    for (;;) {
      seccomp_notif call{};
      if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
      const bool works = call.data.nr == SYS_fdatasync ? sync() : write();
      seccomp_notif_resp response{.id = call.id, .val = 0, .error = works ? 0 : -EIO, .flags = 0};
      if (works) response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
      ::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
    }
  }

  bool write() {
    if (failed_ && broken_) return false;
    dirty_ = true;
    return true;
  }

  bool sync() {
    if (!std::exchange(dirty_, false)) return true;
    if (broken_) {
      failed_ = true;
      return false;
    }
    const std::lock_guard lock(mutex_);
    durable_ = bytes_of(file_);
    return true;
  }

  std::filesystem::path file_;
  std::thread server_;
  std::atomic<bool> broken_ = false;
  bool dirty_ = false;  ///< of the file's pages
  bool failed_ = false;
  std::mutex mutex_;
  std::vector<std::byte> durable_;
};

class JournalDisk : public testing::Test {
 protected:
  /// Leaves a journal whose Committed record is in memory but not on the disk, on pages that are
  /// clean.
  std::filesystem::path lose_a_record(std::optional<Disk>& disk) {
    std::optional<Journal> journal(begin(dir_.path()));
    const auto path = journal->path();
    disk.emplace(path);
    disk->break_down();
    const Status appended = journal->append(committed());
    EXPECT_EQ(appended.error().code(), Code::kDataLoss) << appended.error().message();
    journal.reset();
    disk->repair();
    EXPECT_TRUE(parse(bytes_of(path)).records.back().has_committed());
    EXPECT_TRUE(disk->after_power_loss().records.back().has_began());
    return path;
  }

  StateDir dir_;
};

TEST_F(JournalDisk, NextOwnerUsesOnlyDurableRecords) {
  in_child([this] {
    std::optional<Disk> disk;
    const auto path = lose_a_record(disk);
    const auto journal = Journal::open(path, Lock::kTry);
    ASSERT_TRUE(journal) << journal.error().message();
    EXPECT_EQ(journal->records().size(), disk->after_power_loss().records.size());
  });
}

TEST_F(JournalDisk, AnswersUseOnlyDurableRecords) {
  in_child([this] {
    std::optional<Disk> disk;
    const auto path = lose_a_record(disk);
    const auto contents = read_durable(path);
    ASSERT_TRUE(contents) << contents.error().message();
    EXPECT_EQ(contents->records.size(), disk->after_power_loss().records.size());
  });
}

TEST_F(JournalDisk, RecordThatCannotBeMadeDurableIsNotUsed) {
  in_child([this] {
    std::optional<Disk> disk;
    const auto path = lose_a_record(disk);
    disk->break_down();
    const auto read = read_durable(path);
    const auto opened = Journal::open(path, Lock::kTry);
    ASSERT_FALSE(read || opened);
    EXPECT_EQ(read.error().code(), Code::kIo);
    EXPECT_EQ(opened.error().code(), Code::kIo);
  });
}

}  // namespace
}  // namespace gcr::journal::test
