// One Protobuf message per packet of a SOCK_SEQPACKET pair, with at most one descriptor beside it.
#pragma once

#include <google/protobuf/message_lite.h>

#include <optional>
#include <string>

#include "proto/registry.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::worker {

inline constexpr std::size_t kMaxPacketBytes = 64 * 1024;

struct Packet {
  std::string bytes;  ///< empty: the other end is closed
  UniqueFd fd;        ///< close-on-exec; none if the packet carries none
};

/// Whether a call may block until the other end reads.
enum class Wait : bool { kNo, kYes };

/// Sends one packet; `fd` (or -1) stays the caller's. kUnavailable if the other end is closed,
/// kResourceExhausted if it may not wait and the socket is full.
Status send_packet(int socket, const google::protobuf::MessageLite& message, int fd, Wait wait);

/// Receives one packet without blocking; nothing if there is none yet, which can happen even after
/// the socket was reported readable.
Result<std::optional<Packet>> receive_packet(int socket);

/// Whether what was asked for is granted, without a sequence.
registry::Answer to_answer(const Status& status);
Status from_answer(const registry::Answer& answer);

}  // namespace gcr::worker
