#include "migrate-agent/criu/launch/hold_line.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

namespace gcr::criu {

using launch::Hold;
using launch::HoldMessage;

namespace {

constexpr int kPatienceMs = 10'000;

}  // namespace

bool HoldLine::has_word() const {
  HoldMessage message{};
  return ::recv(socket_.get(), &message, sizeof(message), MSG_PEEK | MSG_DONTWAIT) > 0;
}

Result<HoldMessage> HoldLine::receive(Hold expected) {
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

Status HoldLine::let_go_on() { return send({.what = Hold::kGoOn}); }

}  // namespace gcr::criu
