// A sender's whole connection, plain: messages of a receiver, in any order and truncated anywhere.
#include <sys/socket.h>

#include <thread>

#include "tests/fuzz/input.h"
#include "tests/support/tcp_relay.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/tcp.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::transport;
using std::chrono::milliseconds;

/// A receiver's messages: a welcome first unless the first byte is odd, then frames or raw bytes.
std::string conversation(Input input) {
  Script script;
  if (input.number<std::uint8_t>() % 2 == 0) {
    script.bytes(encode(FrameHeader{.type = FrameType::kWelcome}));
  }
  while (!input.empty()) {
    const auto kind = input.number<std::uint8_t>();
    if (kind >= 0x80) {
      script.bytes(input.bytes(kind - 0x7f));
      continue;
    }
    const auto sequence = input.number<std::uint8_t>();
    const auto length = input.number<std::uint16_t>();
    script.bytes(encode(FrameHeader{.type = static_cast<FrameType>(kind & 0x0f),
                                    .length_bytes = length,
                                    .sequence = sequence}));
    script.bytes(input.bytes(length));
  }
  return script;
}

/// Accepts one connection, sends all of it, and closes once the sender has.
void play_receiver(const test::LoopbackListener& listener, const std::string& text) {
  const UniqueFd socket = listener.accept();
  (void)::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(socket.get(), SHUT_WR);
  char dropped[4096];
  while (::recv(socket.get(), dropped, sizeof dropped, 0) > 0) {
  }
}

void take(Input input) {
  static const test::LoopbackListener listener;
  const std::string text = conversation(input);
  std::thread receiver([&] { play_receiver(listener, text); });
  {
    auto channel = connect({{"127.0.0.1", listener.port()}}, {.token = "the token",
                                                              .connect_timeout = milliseconds(500),
                                                              .reconnect_window = milliseconds(0),
                                                              .peer_timeout = milliseconds(500)});
    if (channel) {
      const std::vector<std::byte> bytes(100, std::byte{7});
      const Status written = (*channel)->write(1, 0, bytes);
      const Status flushed = (*channel)->flush();
      require(written || !flushed, "what is broken stays broken");
    }
  }
  receiver.join();
}

}  // namespace

std::vector<std::string> seeds() {
  const auto frame = [](FrameType type, std::uint8_t sequence, std::string_view payload) {
    return std::string(Script()
                           .number(static_cast<std::uint8_t>(type))
                           .number(sequence)
                           .number(static_cast<std::uint16_t>(payload.size()))
                           .text(payload));
  };
  const std::string refusal = encode_error(Error(Code::kNotFound, "there is no region 1"));
  return {Script().number<std::uint8_t>(0).text(frame(FrameType::kLanded, 1, "")),
          Script().number<std::uint8_t>(0).text(frame(FrameType::kError, 0, refusal)),
          Script().number<std::uint8_t>(1).text(frame(FrameType::kError, 0, refusal)),
          Script().number<std::uint8_t>(0).text(frame(FrameType::kLanded, 9, ""))};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
