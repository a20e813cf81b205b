// Packets on a SOCK_SEQPACKET pair: one Protobuf message each, with at most one descriptor.
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
/// kResourceExhausted if the socket is full and the call may not block.
Status send_packet(int socket, const google::protobuf::MessageLite& message, int fd, Wait wait);

/// Receives one packet without blocking; none if no packet has arrived, which can happen even after
/// the socket was reported readable.
Result<std::optional<Packet>> receive_packet(int socket);

/// Convert the result of a request to and from an Answer, without its sequence number.
registry::Answer to_answer(const Status& status);
Status from_answer(const registry::Answer& answer);

}  // namespace gcr::worker
