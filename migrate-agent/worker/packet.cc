#include "migrate-agent/worker/packet.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace gcr::agent {
namespace {

using DescriptorSpace = std::array<char, CMSG_SPACE(sizeof(int))>;

/// Takes every descriptor of the message; keeps the first, closes the others.
UniqueFd take_descriptor(msghdr& header) {
  UniqueFd first;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);
      if (!first) first = std::move(owned);
    }
  }
  return first;
}

}  // namespace

Status send_packet(int socket, const google::protobuf::MessageLite& message, int fd, Wait wait) {
  std::string bytes = message.SerializeAsString();
  if (bytes.empty() || bytes.size() > kMaxPacketBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a packet has 1 to {} bytes, not {}", kMaxPacketBytes, bytes.size()));
  }
  iovec part{bytes.data(), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) DescriptorSpace space{};
  if (fd >= 0) {
    header.msg_control = space.data();
    header.msg_controllen = space.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(int));
  }
  const int flags = MSG_NOSIGNAL | (wait == Wait::kNo ? MSG_DONTWAIT : 0);
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &header, flags);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return {};
  if (errno == EAGAIN) {
    return Error(Code::kResourceExhausted, "cannot send a packet: the other end does not read");
  }
  return Error::from_errno(errno, "cannot send a packet");
}

Result<std::optional<Packet>> receive_packet(int socket) {
  Packet packet;
  packet.bytes.resize(kMaxPacketBytes);
  iovec part{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) DescriptorSpace space{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = space.data();
  header.msg_controllen = space.size();
  ssize_t received = -1;
  do {
    received = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  if (received < 0 && errno == EAGAIN) return std::optional<Packet>();
  if (received < 0) return Error::from_errno(errno, "cannot receive a packet");
  packet.fd = take_descriptor(header);
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return Error(Code::kProtocol, "a packet is longer than the protocol allows");
  }
  packet.bytes.resize(static_cast<std::size_t>(received));
  return std::optional<Packet>(std::move(packet));
}

}  // namespace gcr::agent
