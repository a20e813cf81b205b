#include "tests/process/layer/container.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "tests/support/ready_child.h"

namespace gcr::layer::test {
namespace {

namespace fs = std::filesystem;

void must(bool done, const std::string& what) {
  if (!done) throw std::runtime_error(what + ": " + std::strerror(errno));
}

void enter_private_namespace() {
  must(::unshare(CLONE_NEWNS) == 0, "unshare");
  must(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "private mounts");
}

}  // namespace

Machine::Machine() {
  enter_private_namespace();
  std::string path = "/tmp/gcr-layer-XXXXXX";
  must(::mkdtemp(path.data()) != nullptr, "mkdtemp");
  path_ = path;
  mount_at(path_, "tmpfs");
}

Machine::~Machine() {
  ::umount2(path_.c_str(), MNT_DETACH);
  ::rmdir(path_.c_str());
}

void mount_at(const fs::path& point, const std::string& type, const std::string& options,
              const std::string& source) {
  fs::create_directories(point);
  must(::mount(source.c_str(), point.c_str(), type.c_str(), 0, options.c_str()) == 0,
       "mount " + point.string());
}

void bind_at(const fs::path& point, const fs::path& source) {
  must(::mount(source.c_str(), point.c_str(), nullptr, MS_BIND, nullptr) == 0,
       "bind " + point.string());
}

Container::Container(const fs::path& image, const fs::path& home, const ContainerOptions& options)
    : upper_(home / options.name_of_upper), merged_(home / "merged") {
  fs::create_directories(upper_);
  fs::create_directories(home / "work");
  std::string name;
  for (const char byte : upper_.string()) {
    if (byte == ',' || byte == '\\') name += '\\';
    name += byte;
  }
  mount_at(merged_, "overlay",
           fmt::format("lowerdir={},upperdir={},workdir={}{}", image.string(), name,
                       (home / "work").string(), options.overlay));
  start(merged_, options);
}

Container::Container(const fs::path& root, const ContainerOptions& options) {
  start(root, options);
}

Container::~Container() {
  ::kill(init_, SIGKILL);
  ::waitpid(init_, nullptr, 0);
  if (!merged_.empty()) ::umount2(merged_.c_str(), MNT_DETACH);
}

void Container::start(const fs::path& root, const ContainerOptions& options) {
  init_ = gcr::test::fork_ready([&] {
    try {
      enter_private_namespace();
      bind_at(root, root);
      if (options.mount) options.mount(root);
      if (options.is_read_only) {
        must(::mount("none", root.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) == 0,
             "read-only");
      }
      must(::chdir(root.c_str()) == 0 && ::syscall(SYS_pivot_root, ".", ".") == 0 &&
               ::umount2(".", MNT_DETACH) == 0 && ::chdir("/") == 0,
           "pivot_root");
      return true;
    } catch (const std::exception& error) {
      (void)!::write(STDERR_FILENO, error.what(), std::strlen(error.what()));
      return false;
    }
  });
}

fs::path Container::root() const { return fmt::format("/proc/{}/root", init_); }

void Container::run(const std::string& script) const {
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string all = "cd " + root().string() + "\n" + script;
    ::execl("/bin/bash", "bash", "-e", "-c", all.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  must(::waitpid(child, &status, 0) == child, "waitpid");
  if (status != 0) throw std::runtime_error("this fails: " + script);
}

}  // namespace gcr::layer::test
