// Passes descriptors together with bytes over a Unix socket (unix(7), SCM_RIGHTS). Allocates
// nothing, throws nothing and makes only system calls, so that a forked child and the preload
// library can use it too.
#pragma once

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace gcr {

/// Maximum per message in this project; the kernel allows up to 253.
inline constexpr std::size_t kMaxPassedDescriptors = 64;

struct ReceivedMessage {
  ssize_t length = -1;     ///< as recvmsg(2) returns it, with errno
  bool truncated = false;  ///< there were more bytes, or more descriptors, than there was room for
  std::size_t count = 0;   ///< descriptors that came; they are the caller's now
};

/// Sends `bytes` and `descriptors`, which stay the caller's: at most kMaxPassedDescriptors, or
/// EINVAL. As sendmsg(2), but never interrupted.
inline ssize_t send_with_descriptors(int socket, std::span<const std::byte> bytes,
                                     std::span<const int> descriptors, int flags) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int) * kMaxPassedDescriptors)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors.size() > kMaxPassedDescriptors) {
    errno = EINVAL;
    return -1;
  }
  if (!descriptors.empty()) {
    message.msg_control = room;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    ::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

/// Receives one message into `bytes` and its descriptors, close-on-exec, into `descriptors`, at
/// most kMaxPassedDescriptors. What there is no room for is closed. As recvmsg(2),
/// but never interrupted.
inline ReceivedMessage receive_with_descriptors(int socket, std::span<std::byte> bytes,
                                                std::span<int> descriptors, int flags) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int) * kMaxPassedDescriptors)];
  descriptors = descriptors.first(std::min(descriptors.size(), kMaxPassedDescriptors));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  ReceivedMessage received;
  do {
    received.length = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  } while (received.length < 0 && errno == EINTR);
  if (received.length < 0) return received;
  received.truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  for (cmsghdr* rights = CMSG_FIRSTHDR(&message); rights != nullptr;
       rights = CMSG_NXTHDR(&message, rights)) {
    if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
    const unsigned char* const data = CMSG_DATA(rights);
    for (std::size_t at = 0; CMSG_LEN(at) < rights->cmsg_len; at += sizeof(int)) {
      int descriptor = -1;
      ::memcpy(&descriptor, data + at, sizeof(int));
      if (received.count < descriptors.size()) {
        descriptors[received.count++] = descriptor;
      } else {  // the room is rounded up, so one more may have come
        ::close(descriptor);
        received.truncated = true;
      }
    }
  }
  return received;
}

/// The bytes of a plain struct.
template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace gcr
