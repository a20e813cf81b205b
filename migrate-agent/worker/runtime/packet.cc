#include "migrate-agent/worker/runtime/packet.h"

#include <fmt/format.h>

#include <cerrno>

#include "src/base/descriptor_passing.h"
#include "src/control/wire.h"

namespace gcr::worker {

Status send_packet(int socket, const google::protobuf::MessageLite& message, int fd, Wait wait) {
  std::string bytes = message.SerializeAsString();
  if (bytes.empty() || bytes.size() > kMaxPacketBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a packet has 1 to {} bytes, not {}", kMaxPacketBytes, bytes.size()));
  }
  const std::span<const int> descriptors(&fd, fd >= 0 ? 1 : 0);
  const ssize_t sent = send_with_descriptors(socket, std::as_bytes(std::span(bytes)), descriptors,
                                             wait == Wait::kNo ? MSG_DONTWAIT : 0);
  if (sent >= 0) return {};
  if (errno == EAGAIN) {
    return Error(Code::kResourceExhausted, "cannot send a packet: the other end does not read");
  }
  return Error::from_errno(errno, "cannot send a packet");
}

Result<std::optional<Packet>> receive_packet(int socket) {
  Packet packet;
  packet.bytes.resize(kMaxPacketBytes);
  int descriptor = -1;
  const ReceivedMessage received = receive_with_descriptors(
      socket, std::as_writable_bytes(std::span(packet.bytes)), {&descriptor, 1}, MSG_DONTWAIT);
  if (received.length < 0 && errno == EAGAIN) return std::optional<Packet>();
  if (received.length < 0) return Error::from_errno(errno, "cannot receive a packet");
  packet.fd.reset(descriptor);
  if (received.truncated) {
    return Error(Code::kProtocol, "a packet is longer than the protocol allows");
  }
  packet.bytes.resize(static_cast<std::size_t>(received.length));
  return std::optional<Packet>(std::move(packet));
}

registry::Answer to_answer(const Status& status) {
  registry::Answer answer;
  if (status) return answer;
  answer.set_code(std::string(to_string(status.error().code())));
  answer.set_message(status.error().message());
  return answer;
}

Status from_answer(const registry::Answer& answer) {
  if (answer.code().empty()) return {};
  proto::Failure refusal;
  refusal.set_code(answer.code());
  refusal.set_message(answer.message());
  return control::from_failure(refusal);
}

}  // namespace gcr::worker
