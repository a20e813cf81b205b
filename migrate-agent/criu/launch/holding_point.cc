#include "migrate-agent/criu/launch/holding_point.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gcr::criu {

Result<HoldingPoint> HoldingPoint::create(const std::filesystem::path& directory,
                                          const std::string& name) {
  std::filesystem::path path = directory / name;
  const std::string doing = "cannot make the FIFO " + path.string();
  ::unlink(path.c_str());
  if (::mkfifo(path.c_str(), 0600) != 0) return Error::from_errno(errno, doing);
  UniqueFd fifo(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  UniqueFd opened(::inotify_init1(IN_CLOEXEC));
  if (!fifo || !opened || ::inotify_add_watch(opened.get(), path.c_str(), IN_OPEN) < 0) {
    return Error::from_errno(errno, doing);
  }
  return HoldingPoint(std::move(path), std::move(fifo), std::move(opened));
}

Result<bool> HoldingPoint::wait_until_reached(Session& session) {
  GCR_ASSIGN(const bool reached, session.wait_for(opened_.get()));
  remove();
  opened_.reset();
  return reached;
}

void HoldingPoint::remove() {
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
}

Status HoldingPoint::pass(const std::string& content) {
  const ssize_t written = ::write(fifo_.get(), content.data(), content.size());
  if (written != static_cast<ssize_t>(content.size())) {
    return Error::from_errno(written < 0 ? errno : EFBIG, "cannot let CRIU go on");
  }
  fifo_.reset();
  return {};
}

}  // namespace gcr::criu
