#include "migrate-agent/daemon/listener/listening.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <cerrno>

#include "migrate-agent/worker/runtime/local_socket.h"
#include "src/control/deadline.h"

namespace gcr::daemon {
namespace {

constexpr mode_t kWorldReadWrite = 0666;

/// Checks that only root and this process's user can create or replace files in the directory.
Status check_directory(const std::filesystem::path& directory) {
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) {
    return Error::from_errno(errno, "cannot examine the directory " + directory.string());
  }
  const bool ours = info.st_uid == 0 || info.st_uid == ::geteuid();
  if (ours && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("local_socket cannot be in {}: other users may write there and could "
                           "replace the socket",
                           directory.string()));
}

}  // namespace

using asio::ip::tcp;

Result<std::string> listen_on(asio::ip::tcp::acceptor& acceptor,
                              const control::Endpoint& endpoint) {
  const std::string where = endpoint.to_string();
  std::error_code error;
  tcp::resolver resolver(acceptor.get_executor());
  const auto found =
      resolver.resolve(endpoint.host, std::to_string(endpoint.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) {
    return Error(Code::kInvalidArgument,
                 fmt::format("cannot listen on {}: {}", where, error.message()));
  }
  const tcp::endpoint address = found.begin()->endpoint();
  acceptor.open(address.protocol(), error);
  // Connections of an earlier daemon, which its workers still use, must not keep the port busy.
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(address, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  const tcp::endpoint bound = error ? tcp::endpoint() : acceptor.local_endpoint(error);
  if (error) return Error::from_errno(error.value(), "cannot listen on " + where);
  return control::Endpoint{bound.address().to_string(), bound.port()}.to_string();
}

std::string network_of(const asio::ip::address& address) {
  if (address.is_v4()) return address.to_string();
  const asio::ip::address_v6 whole = address.to_v6();
  if (whole.is_v4_mapped()) return make_address_v4(asio::ip::v4_mapped, whole).to_string();
  asio::ip::address_v6::bytes_type network = whole.to_bytes();
  std::fill(network.begin() + 8, network.end(), 0);
  return asio::ip::address_v6(network, whole.scope_id()).to_string() + "/64";
}

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

Result<UniqueFd> take_descriptor(asio::generic::stream_protocol::socket socket) {
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

Result<LocalListener> LocalListener::listen(asio::io_context& io,
                                            const std::filesystem::path& path) {
  GCR_TRY(check_directory(path.parent_path()));
  GCR_ASSIGN(auto listening, worker::listen_at(path, SOCK_STREAM, kWorldReadWrite));
  asio::local::stream_protocol::acceptor acceptor(io);
  std::error_code error;
  acceptor.assign({}, listening.socket.release(), error);
  if (error) return Error::from_errno(error.value(), "cannot listen at " + path.string());
  return LocalListener(std::move(acceptor), path, listening.inode);
}

LocalListener::~LocalListener() {
  struct stat info {};
  if (path_.empty() || ::lstat(path_.c_str(), &info) != 0 || info.st_ino != inode_) return;
  ::unlink(path_.c_str());
}

asio::awaitable<Result<LocalConnection>> LocalListener::accept() {
  std::error_code error;
  asio::local::stream_protocol::socket socket =
      co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
  if (error == asio::error::operation_aborted) co_return Error(Code::kCancelled, "closed");
  if (error) co_return Error::from_errno(error.value(), "cannot accept a local connection");
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    co_return Error::from_errno(errno, "cannot read the uid of a local client");
  }
  auto taken = take_descriptor(std::move(socket));
  GCR_CO_TRY(taken);
  co_return LocalConnection{std::move(*taken), peer.uid};
}

}  // namespace gcr::daemon
