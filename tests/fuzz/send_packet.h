// Packets with descriptors, as a peer on a Unix socket would send them.
#pragma once

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "src/base/unique_fd.h"

namespace gcr::fuzz {

inline constexpr std::size_t kMostDescriptors = 253;  ///< SCM_MAX_FD of the kernel

/// Sends one packet with these descriptors, to kMostDescriptors; lost if it cannot be delivered.
inline void send_packet(int socket, std::span<const std::byte> bytes,
                        std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = space.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  (void)::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// The same with `count` descriptors of one file.
inline void send_packet(int socket, std::span<const std::byte> bytes, std::size_t count) {
  static const UniqueFd something(::eventfd(0, EFD_CLOEXEC));
  std::array<int, kMostDescriptors> sent{};
  sent.fill(something.get());
  send_packet(socket, bytes, std::span(sent).first(count));
}

}  // namespace gcr::fuzz
