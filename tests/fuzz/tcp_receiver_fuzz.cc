// A receiver's whole connection, plain: messages of a sender, in any order and truncated anywhere.
// Bytes land in its regions or nowhere.
#include <sys/socket.h>

#include <atomic>

#include "tests/fuzz/input.h"
#include "tests/support/tcp_relay.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/tcp.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::transport;

constexpr char kToken[] = "the token";
constexpr std::size_t kRegionBytes = 5000;
constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kGuard{0x5a};
constexpr std::uint8_t kAsks = 0x40;
constexpr std::uint8_t kNextConnection = 0x7f;

/// Memory with a region in its middle.
struct Guarded {
  std::vector<std::byte> bytes = std::vector<std::byte>(kRegionBytes + 2 * kGuardBytes, kGuard);
  std::span<std::byte> region() { return std::span(bytes).subspan(kGuardBytes, kRegionBytes); }
  bool untouched_around() const {
    for (std::size_t i = 0; i < kGuardBytes; ++i) {
      if (bytes[i] != kGuard || bytes[kGuardBytes + kRegionBytes + i] != kGuard) return false;
    }
    return true;
  }
};

/// A lane's connections, one after the other, as bytes.
using Conversation = std::vector<std::string>;

std::string hello() {
  return Script()
      .bytes(encode(FrameHeader{.type = FrameType::kHello, .length_bytes = kHelloBytes}))
      .bytes(encode(Hello{.lane = 0, .lanes = 1, .session = Uuid{{7}}, .token = kToken}));
}

/// A sender's messages: a hello first on each connection unless the first byte is odd, then frames
/// that are usually numbered correctly, or raw bytes.
Conversation conversation(Input input) {
  const bool greets = input.number<std::uint8_t>() % 2 == 0;
  Conversation said;
  Script script;
  if (greets) script.text(hello());
  std::uint64_t writes = 0;
  while (!input.empty()) {
    const auto kind = input.number<std::uint8_t>();
    if (kind >= 0x80) {
      script.bytes(input.bytes(kind - 0x7f));
      continue;
    }
    if (kind == kNextConnection) {
      said.push_back(std::exchange(script, Script()));
      if (greets) script.text(hello());
      writes = input.number<std::uint8_t>();
      continue;
    }
    const auto region = input.number<std::uint8_t>();
    const auto offset = input.number<std::uint64_t>();
    const auto length = input.number<std::uint32_t>();
    const auto type = static_cast<FrameType>(kind & 0x0f);
    script.bytes(encode(FrameHeader{.type = type,
                                    .asks = (kind & kAsks) != 0,
                                    .region = region,
                                    .length_bytes = length,
                                    .offset = offset,
                                    .sequence = writes}));
    if (type == FrameType::kWrite) ++writes;
    script.bytes(input.bytes(length));
  }
  said.push_back(script);
  return said;
}

/// Sends all of it, closes, and waits until the other end has closed too.
void say(const UniqueFd& socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  ::shutdown(socket.get(), SHUT_WR);
  char dropped[4096];
  while (::recv(socket.get(), dropped, sizeof dropped, 0) > 0) {
  }
}

void take(Input input) {
  static const test::LoopbackListener listener;
  Guarded memory;
  const auto landed = [](RegionId region, std::uint64_t offset, std::uint64_t length) -> Status {
    require(region == 1 && offset <= kRegionBytes && length <= kRegionBytes - offset,
            "what landed lies in a region");
    return {};
  };
  {
    const auto receiver = receive_tcp({.token = kToken, .on_landed = landed});
    require(bool(receiver->add_region(1, memory.region())), "a region");
    for (const std::string& said : conversation(input)) {
      const UniqueFd ours = test::connect_loopback(listener.port());
      if (!receiver->add_connection(listener.accept())) break;
      say(ours, said);
    }
  }
  require(memory.untouched_around(), "nothing lands outside of a region");
}

}  // namespace

std::vector<std::string> seeds() {
  const auto frame = [](FrameType type, std::uint64_t offset, std::string_view payload) {
    const bool write = type == FrameType::kWrite;
    return std::string(
        Script()
            .number(static_cast<std::uint8_t>(static_cast<unsigned>(type) | (write ? kAsks : 0)))
            .number<std::uint8_t>(write ? 1 : 0)
            .number(offset)
            .number(static_cast<std::uint32_t>(payload.size()))
            .text(payload));
  };
  const std::string greeting = hello();
  return {Script()
              .number<std::uint8_t>(0)
              .text(frame(FrameType::kWrite, 0, "some bytes"))
              .text(frame(FrameType::kFlush, 0, ""))
              .text(frame(FrameType::kWrite, kRegionBytes - 3, "end"))
              .text(frame(FrameType::kEnd, 0, "")),
          Script()
              .number<std::uint8_t>(0)
              .text(frame(FrameType::kWrite, 0, "first"))
              .number(kNextConnection)
              .number<std::uint8_t>(1)
              .text(frame(FrameType::kWrite, 5, "second"))
              .number(kNextConnection)
              .number<std::uint8_t>(1)
              .text(frame(FrameType::kWrite, 5, "second")),
          Script().number<std::uint8_t>(0).text(frame(FrameType::kWrite, kRegionBytes - 2, "end")),
          Script()
              .number<std::uint8_t>(1)
              .number(static_cast<std::uint8_t>(0x7f + greeting.size()))
              .text(greeting)};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
