#include "migrate-agent/worker/runtime/worker_client.h"

#include <fmt/format.h>

#include <asio/posix/stream_descriptor.hpp>
#include <asio/redirect_error.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <cerrno>

#include "migrate-agent/worker/runtime/local_socket.h"
#include "migrate-agent/worker/runtime/packet.h"
#include "src/control/deadline.h"

namespace gcr::worker {
namespace {

using asio::posix::stream_descriptor;

Error no_worker(const WorkerAddress& worker) {
  return Error(Code::kNotFound, fmt::format("no worker runs migration {} ({})",
                                            worker.migration.to_string(), to_string(worker.role)));
}

Error gone() { return Error(Code::kUnavailable, "the worker ended before it replied"); }

Result<UniqueFd> connect_to(const WorkerAddress& worker) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Error::from_errno(errno, "cannot make a socket");
  const auto address = LocalAddress::create(worker.path());
  if (!address && address.error().code() == Code::kNotFound) return no_worker(worker);
  GCR_TRY(address);
  if (::connect(socket.get(), address->get(), address->length()) == 0) return socket;
  // The socket of a dead worker refuses connections.
  if (errno == ENOENT || errno == ECONNREFUSED) return no_worker(worker);
  if (errno == EAGAIN) return Error(Code::kUnavailable, "the worker accepts no more connections");
  return Error::from_errno(errno, "cannot connect to " + worker.path().string());
}

Result<registry::WorkerReply> read_reply(const Packet& packet) {
  registry::WorkerReply reply;
  if (packet.bytes.empty()) return gone();
  if (!reply.ParseFromString(packet.bytes)) {
    return Error(Code::kProtocol, "a worker sent an invalid reply");
  }
  GCR_TRY(from_answer(reply.answer()));
  return reply;
}

}  // namespace

std::filesystem::path WorkerAddress::path() const {
  return runtime_dir / "workers" /
         fmt::format("{}-{}", migration.to_string(), journal::to_string(role));
}

asio::awaitable<Result<registry::WorkerReply>> ask_worker(WorkerAddress worker,
                                                          registry::ToWorker question,
                                                          std::chrono::milliseconds timeout) {
  auto connected = connect_to(worker);
  GCR_CO_TRY(connected);
  stream_descriptor socket(co_await asio::this_coro::executor, connected->release());
  const control::Deadline deadline(socket.get_executor(), timeout, [&socket] { socket.cancel(); });
  const Status sent = send_packet(socket.native_handle(), question, -1, Wait::kNo);
  if (!sent) co_return gone();
  for (;;) {
    std::error_code error;
    co_await socket.async_wait(stream_descriptor::wait_read,
                               asio::redirect_error(asio::use_awaitable, error));
    if (deadline.expired()) {
      co_return Error(Code::kTimeout, fmt::format("the worker of migration {} does not reply",
                                                  worker.migration.to_string()));
    }
    if (error) co_return Error(Code::kCancelled, "no longer waiting for a worker");
    const auto packet = receive_packet(socket.native_handle());
    if (!packet) co_return gone();
    if (*packet) co_return read_reply(**packet);
  }
}

}  // namespace gcr::worker
