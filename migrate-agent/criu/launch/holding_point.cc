#include "migrate-agent/criu/launch/holding_point.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gcr::criu {

using launch::Hold;
using launch::HoldMessage;

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

bool HoldLine::has_word() const {
  HoldMessage message{};
  return ::recv(socket_.get(), &message, sizeof(message), MSG_PEEK | MSG_DONTWAIT) > 0;
}

Result<HoldMessage> HoldLine::receive(Hold expected) {
  constexpr int kPatienceMs = 60'000;  // it may share its processors with many others
  pollfd watched{socket_.get(), POLLIN, 0};
  int ready = 0;
  while ((ready = ::poll(&watched, 1, kPatienceMs)) < 0 && errno == EINTR) {
  }
  if (ready == 0) return Error(Code::kTimeout, "CRIU does not answer");
  HoldMessage message{};
  const ssize_t got = ::recv(socket_.get(), &message, sizeof(message), MSG_DONTWAIT);
  if (got == sizeof(message) && message.what == expected) return message;
  return Error(Code::kInternal, "CRIU has ended, or gives a wrong answer");
}

Status HoldLine::send(const HoldMessage& message) {
  if (::send(socket_.get(), &message, sizeof(message), MSG_NOSIGNAL) == sizeof(message)) return {};
  return Error::from_errno(errno, "cannot speak with CRIU");
}

Result<pid_t> HoldLine::wait_for_criu() {
  GCR_ASSIGN(const HoldMessage message, receive(Hold::kWaiting));
  return message.pid;
}

Result<HoldMessage> HoldLine::ask(const HoldMessage& request) {
  GCR_TRY(send(request));
  GCR_ASSIGN(const HoldMessage answer, receive(request.what));
  if (answer.pid == 0) return answer;
  return Error::from_errno(answer.pid, "CRIU cannot make memory for the processes");
}

}  // namespace gcr::criu
