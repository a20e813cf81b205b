#include "transport/tcp/sender_connection.h"

#include <fmt/format.h>

#include <array>

namespace gcr::transport {
namespace {

// How long a connection whose hello could not be sent waits for the receiver's error.
constexpr std::chrono::milliseconds kLastWordWait{1000};

}  // namespace

Result<std::uint64_t> SenderConnection::open(const TcpOptions& options, const Hello& hello,
                                             std::chrono::milliseconds timeout) {
  GCR_TRY(stream_.set_timeout(timeout));
  GCR_TRY(greet(options, hello));
  GCR_ASSIGN(const std::uint64_t landed, receive(FrameType::kWelcome));
  GCR_TRY(stream_.set_timeout(std::chrono::milliseconds(0)));
  return landed;
}

Status SenderConnection::greet(const TcpOptions& options, const Hello& hello) {
  if (!options.preface.empty()) GCR_TRY(stream_.send(options.preface));
  if (options.tls != nullptr) {
    GCR_TRY(stream_.start_tls(options.tls, Stream::Side::kClient, options.verify_peer,
                              options.transfer));
  }
  Hello shown = hello;
  shown.token = stream_.token_proof(hello.token);
  const FrameHeader header{.type = FrameType::kHello, .length_bytes = kHelloBytes};
  const Status sent = stream_.send(encode(header), encode(shown));
  if (sent || !stream_.set_timeout(kLastWordWait)) return sent;
  const auto said = receive(FrameType::kWelcome);
  return said || is_lost(said.error()) ? sent : Status(said.error());
}

Status SenderConnection::send(const FrameHeader& header, std::span<const std::byte> payload) {
  GCR_TRY(stream_.send(encode(header), payload));
  bytes_since_rekey_ += payload.size();
  if (bytes_since_rekey_ < rekey_bytes_) return {};
  bytes_since_rekey_ = 0;
  return stream_.rekey();
}

Result<std::uint64_t> SenderConnection::receive(FrameType type) {
  HeaderBytes bytes;
  GCR_TRY(stream_.receive(bytes));
  GCR_ASSIGN(const FrameHeader header, decode(bytes));
  if (header.type == FrameType::kError) return receive_error(header);
  if (header.type != type) {
    return Error(Code::kProtocol,
                 fmt::format("the receiver sent a frame of type {}, not {}",
                             static_cast<unsigned>(header.type), static_cast<unsigned>(type)));
  }
  return header.sequence;
}

Error SenderConnection::receive_error(const FrameHeader& header) {
  std::array<std::byte, kMaxErrorBytes> payload;
  const auto text = std::span(payload).first(header.length_bytes);
  if (auto received = stream_.receive(text); !received) return received.error();
  refused_ = true;
  return decode_error(text).while_doing("the receiver reports");
}

Status SenderConnection::send_end(std::uint64_t sequence, std::chrono::milliseconds limit) {
  GCR_TRY(stream_.set_timeout(limit));
  return send({.type = FrameType::kEnd, .sequence = sequence}, {});
}

}  // namespace gcr::transport
