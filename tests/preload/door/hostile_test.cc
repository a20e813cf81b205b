// Processes that hold other files under the name of a door's card.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "preload/door_protocol.h"
#include "src/base/unique_fd.h"

namespace gcr::test {
namespace {

constexpr int kPatienceMs = 30'000;

/// Runs `question` in a child process, which is killed if it takes too long: an agent that waits
/// for another process's object would wait forever. Its answer, or -1.
int answer_of(const std::function<bool()>& question) {
  const pid_t asking = ::fork();
  if (asking == 0) ::_exit(question() ? 1 : 0);
  const UniqueFd ended = procfs::pidfd_of_child(asking);
  pollfd watched{ended.get(), POLLIN, 0};
  const bool answered = ::poll(&watched, 1, kPatienceMs) == 1;
  if (!answered) ::kill(asking, SIGKILL);
  int status = 0;
  ::waitpid(asking, &status, 0);
  return answered && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// A child that only holds a descriptor.
class Holder {
 public:
  Holder() : pid_(::fork()) {
    if (pid_ != 0) return;
    for (;;) ::pause();
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

/// A descriptor of the file from `make`, whose link text is that of a card: it lies, deleted, at
/// the top of a file system that is mounted nowhere any more.
UniqueFd named_like_a_card(const std::function<bool(const std::string&)>& make, int flags) {
  const std::string directory = "/dev/shm/hostile";
  std::string path = directory;
  path.append("/memfd:").append(door::kMemfdName);
  UniqueFd fd;
  if (::mkdir(directory.c_str(), 0700) == 0 &&
      ::mount("none", directory.c_str(), "tmpfs", 0, nullptr) == 0 && make(path)) {
    fd.reset(::open(path.c_str(), flags | O_CLOEXEC));
  }
  ::unlink(path.c_str());
  ::umount2(directory.c_str(), MNT_DETACH);
  ::rmdir(directory.c_str());
  return fd;
}

/// A process that holds it has no door, and the check did not open it.
void expect_no_door(const UniqueFd& fd) {
  ASSERT_TRUE(fd);
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  const UniqueFd opened(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(::inotify_add_watch(opened.get(), path.c_str(), IN_OPEN), 0);
  char link[64] = {};
  ASSERT_GT(::readlink(path.c_str(), link, sizeof(link)), 0);
  ASSERT_EQ(link, "/memfd:" + std::string(door::kMemfdName) + " (deleted)");
  const Holder holder;
  EXPECT_EQ(answer_of([&] { return gpu::has_door(holder.pid()); }), 0);
  EXPECT_EQ(answer_of([&] {
              return gpu::find_door(holder.pid(), std::chrono::milliseconds(0)).has_value();
            }),
            0);
  char event[4096];
  EXPECT_LT(::read(opened.get(), event, sizeof(event)), 0) << "it was opened";
}

TEST(HostileDoor, FifoNamedAsACardDoesNotBlock) {
  expect_no_door(
      named_like_a_card([](const std::string& path) { return ::mkfifo(path.c_str(), 0600) == 0; },
                        O_RDONLY | O_NONBLOCK));
}

TEST(HostileDoor, DeviceNamedAsACardIsNotOpened) {
  expect_no_door(named_like_a_card(
      [](const std::string& path) { return ::mknod(path.c_str(), S_IFCHR | 0600, 0x105) == 0; },
      O_RDONLY));
}

/// A file that has a name cannot be sealed, so it cannot be a card.
TEST(HostileDoor, FakeCardFileIsNotTrusted) {
  const UniqueFd file = named_like_a_card(
      [](const std::string& path) { return ::mknod(path.c_str(), S_IFREG | 0600, 0) == 0; },
      O_RDWR);
  door::DoorCard card{};
  card.magic = door::kMagic;
  card.version = door::kVersion;
  ASSERT_EQ(::write(file.get(), &card, sizeof(card)), static_cast<ssize_t>(sizeof(card)));
  expect_no_door(file);
}

}  // namespace
}  // namespace gcr::test
