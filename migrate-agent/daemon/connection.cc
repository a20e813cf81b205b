#include "migrate-agent/daemon/connection.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <cerrno>

#include "src/control/deadline.h"

namespace gcr::agent {

asio::awaitable<Result<control::Preface>> read_preface(asio::ip::tcp::socket& socket,
                                                       std::chrono::milliseconds timeout) {
  const control::Deadline deadline(socket.get_executor(), timeout, [&socket] {
    std::error_code ignored;
    socket.close(ignored);
  });
  std::array<std::uint8_t, control::kPrefaceBytes> bytes{};
  std::error_code error;
  co_await asio::async_read(socket, asio::buffer(bytes),
                            asio::redirect_error(asio::use_awaitable, error));
  if (deadline.expired()) {
    co_return Error(Code::kTimeout, fmt::format("no preface within {} ms", timeout.count()));
  }
  if (error == asio::error::eof) {
    co_return Error(Code::kUnavailable, "the peer closed before its preface was complete");
  }
  if (error) co_return Error(Code::kUnavailable, "cannot read the preface: " + error.message());
  co_return control::Preface::decode(bytes);
}

Result<UniqueFd> take_descriptor(asio::ip::tcp::socket socket) {
  std::error_code error;
  UniqueFd fd(socket.release(error));
  if (error) return Error(Code::kIo, "cannot release a connection: " + error.message());
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK) != 0 ||
      ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return Error::from_errno(errno, "cannot set the mode of a connection");
  }
  return fd;
}

}  // namespace gcr::agent
