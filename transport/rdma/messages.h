// The messages on a queue pair of the RDMA transport, besides the RDMA WRITEs themselves.
//
// All numbers are little-endian. A message is one SEND of kMessageHeaderBytes:
//
//   byte  0  type     u16   MessageType
//         2  places   u16   kRegionKey: places that the sender may use; 0: the region has memory
//                            kLanded: 1 + the place that was written; 0: the region was written
//         4  region   u32   kRegionQuery, kRegionKey, kLanded, else 0
//         8  number   u64   of the request, chosen by the sender; the answer repeats it
//        16  offset   u64   kLanded: in the region; kRegionKey: the address of the region's first
//                            byte, or of the first place
//        24  length   u64   kLanded: bytes written; kRegionKey: size of the region
//        32  key      u32   kRegionKey: the remote key
//        36  text     u32   kError: bytes that follow: the code (u16), then a sentence
//
// The sender makes two requests. kRegionQuery asks for a region's key, and kRegionKey answers it.
// kLanded follows the RDMA WRITE of the bytes, which the queue pair delivers in order, so they are
// in place when it arrives; kAcknowledged answers it once the receiver's application has consumed
// the bytes and the place is free again. Answers come in any order. A lane uses the same places of
// kPlaceBytes for all regions without memory of their own.
//
// At most `depth` requests of a lane are unanswered, and its last message is kEnd; so depth + 1
// posted receives at the receiver are enough for all messages. The receiver only answers, except
// for kError, its last message; the sender has as many receives posted. A side that receives
// nothing for some time sends an RDMA WRITE of no bytes, which the peer's device answers.
//
// A connection begins with the private data of the connection manager:
//
//   request         magic u32, version u16, lane u16, lanes u16, depth u16, token bytes u16,
//                   zero u16, token
//   accept, reject  magic u32, version u16, text bytes u16, text as in kError (reject only)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "transport/channel.h"
#include "transport/peer.h"
#include "transport/rdma/rdma.h"

namespace gcr::transport::rdma {

inline constexpr std::uint16_t kVersion = 2;
inline constexpr std::size_t kMessageHeaderBytes = 40;
inline constexpr std::size_t kMaxMessageBytes = kMessageHeaderBytes + kMaxErrorBytes;
inline constexpr unsigned kMaxDepth = 256;

enum class MessageType : std::uint16_t {
  kInvalid = 0,
  kRegionQuery = 1,
  kRegionKey = 2,
  kLanded = 3,
  kAcknowledged = 4,
  kError = 5,
  kEnd = 6,
};

struct Message {
  MessageType type = MessageType::kInvalid;
  std::uint16_t places = 0;
  RegionId region = 0;
  std::uint64_t number = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint32_t key = 0;
  std::optional<Error> error = {};  ///< only in kError
};

/// Encodes `message` into `target`, which has kMaxMessageBytes; returns the length. Cuts long
/// texts.
std::size_t encode(const Message& message, std::span<std::byte> target);

/// Decodes a message. Fails with kProtocol for a wrong length, an unknown type, and a non-zero
/// field that the type does not use. Does not check places, regions, offsets and lengths.
Result<Message> decode(std::span<const std::byte> bytes);

/// The private data of a connection request.
struct Hello {
  std::uint16_t lane = 0;
  std::uint16_t lanes = 0;
  std::uint16_t depth = 0;
  std::string token;  ///< to kMaxRdmaTokenBytes
};

inline constexpr std::size_t kHelloBytes = 16 + kMaxRdmaTokenBytes;
static_assert(kHelloBytes <= 56, "the most that librdmacm carries in a connection request");

std::array<std::byte, kHelloBytes> encode(const Hello& hello);

/// Decodes a hello; zeros may follow it in `bytes`. Fails with kProtocol if it is malformed, and
/// with kUnsupported if its version differs.
Result<Hello> decode_hello(std::span<const std::byte> bytes);

inline constexpr std::size_t kMaxAnswerBytes = 148;  ///< librdmacm's limit for a rejection

/// Encodes the private data of an acceptance, or of a rejection for the reason `refusal`.
std::vector<std::byte> encode_answer(const std::optional<Error>& refusal);

/// Decodes the answer: the receiver's reason, or nullopt for an acceptance. Zeros may follow in
/// `bytes`. Fails as decode_hello().
Result<std::optional<Error>> decode_answer(std::span<const std::byte> bytes);

}  // namespace gcr::transport::rdma
