// A lock held by another is waited for, and named in the error of a timeout.
#include "src/base/file_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>
#include <thread>

#include "src/base/unique_fd.h"

namespace gcr {
namespace {

using std::chrono::milliseconds;

/// The same file, opened twice: flock() distinguishes the two.
class FileLock : public testing::Test {
 protected:
  UniqueFd one_{::memfd_create("gcr-lock", MFD_CLOEXEC)};
  UniqueFd other_{
      ::open(("/proc/self/fd/" + std::to_string(one_.get())).c_str(), O_RDWR | O_CLOEXEC)};
};

TEST_F(FileLock, SecondCallerGetsAnErrorThatNamesTheLock) {
  ASSERT_TRUE(lock_file(one_.get(), "the limit", {}));
  for (const milliseconds patience : {milliseconds(0), milliseconds(20)}) {
    const Status refused = lock_file(other_.get(), "the limit", patience);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kTimeout);
    EXPECT_EQ(refused.error().message(), "another process holds the lock of the limit");
  }
}

TEST_F(FileLock, SecondCallerWaits) {
  ASSERT_TRUE(lock_file(one_.get(), "the limit", {}));
  std::jthread holder([this] {
    std::this_thread::sleep_for(milliseconds(50));
    one_.reset();
  });
  EXPECT_TRUE(lock_file(other_.get(), "the limit"));
}

TEST_F(FileLock, InvalidDescriptorIsAnErrorAtOnce) {
  const Status failed = lock_file(-1, "nothing");
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().code(), Code::kTimeout);
}

}  // namespace
}  // namespace gcr
