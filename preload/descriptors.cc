#include "preload/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace gcr::preload {
namespace {

constexpr int kHighNumber = 512;

int move_to(int fd, int lowest) {
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, lowest);
  if (moved < 0) return fd;
  ::close(fd);
  return moved;
}

}  // namespace

int move_high(int fd) { return fd < 0 || fd >= kHighNumber ? fd : move_to(fd, kHighNumber); }

RaisedDescriptorLimit::RaisedDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  soft_ = limit.rlim_cur;
  hard_ = limit.rlim_max;
  if (soft_ >= hard_) return;
  limit.rlim_cur = hard_;
  raised_ = ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

RaisedDescriptorLimit::~RaisedDescriptorLimit() {
  if (!raised_) return;
  const rlimit limit{soft_, hard_};
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int RaisedDescriptorLimit::move_high(int fd) const {
  if (!raised_ || fd < 0) return preload::move_high(fd);
  const int moved = move_to(fd, static_cast<int>(soft_ < kHighNumber ? kHighNumber : soft_));
  return moved == fd ? preload::move_high(fd) : moved;
}

}  // namespace gcr::preload
