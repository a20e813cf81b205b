// The wire format of the TCP transport: frames of a 32-byte header and a payload.
//
//   byte  0  magic     "GCR1"
//         4  type      u16   FrameType
//         6  asks      u16   kWrite only, else 0: 1 if the receiver must answer with kLanded
//         8  region    u32   kWrite only, else 0
//        12  length    u32   payload bytes that follow
//        16  offset    u64   kWrite only, else 0
//        24  sequence  u64   from the sender: number of the lane's write frames before this one;
//                            from the receiver: number of the lane's write frames that landed
//
// All numbers are little-endian. The sender sends kHello, kWrite, kFlush, kEnd; the receiver sends
// kWelcome (to kHello), kLanded (to kFlush and to each kWrite that asks, once it and everything
// before it have landed), kError (at any time; it sends nothing after that). A frame has landed
// when its payload is in place and the receiver's `on_landed` has returned for it.
//
// Write frames are numbered per lane, across its connections: when a connection is lost, the sender
// opens another one, the kWelcome says how many frames of the lane have landed, and the sender
// sends the others again, the same frames in the same order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "src/base/result.h"
#include "src/base/units.h"
#include "src/base/uuid.h"
#include "transport/channel.h"
#include "transport/tcp/tcp.h"

namespace gcr::transport {

inline constexpr std::uint16_t kFrameVersion = 3;
inline constexpr std::size_t kHeaderBytes = 32;
inline constexpr std::uint32_t kMaxFramePayloadBytes = 2 * kMiB;
inline constexpr std::size_t kHelloBytes = 24 + kMaxTokenBytes;

enum class FrameType : std::uint16_t {
  kInvalid = 0,
  kHello = 1,
  kWelcome = 2,
  kWrite = 3,
  kFlush = 4,
  kLanded = 5,
  kError = 6,
  kEnd = 7,
};

struct FrameHeader {
  FrameType type = FrameType::kInvalid;
  bool asks = false;
  RegionId region = 0;
  std::uint32_t length_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t sequence = 0;

  bool operator==(const FrameHeader&) const = default;
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encode(const FrameHeader& header);

/// Decodes a header and checks everything that does not depend on the regions: magic, type, unused
/// fields, and that the length is possible for the type. Fails with kProtocol.
Result<FrameHeader> decode(const HeaderBytes& bytes);

/// The payload of kHello.
struct Hello {
  std::uint16_t version = kFrameVersion;
  std::uint16_t lane = 0;
  std::uint16_t lanes = 0;
  Uuid session = {};  ///< identifies the sender: the same on all connections of all its lanes
  std::string token;  ///< the result of Stream::token_proof, at most kMaxTokenBytes
};

using HelloBytes = std::array<std::byte, kHelloBytes>;

/// Encodes `hello`, whose token must have at most kMaxTokenBytes.
HelloBytes encode(const Hello& hello);

/// Decodes a hello. Fails with kProtocol if the lengths are wrong, and with kUnsupported if the
/// version differs.
Result<Hello> decode(const HelloBytes& bytes);

}  // namespace gcr::transport
