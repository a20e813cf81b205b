// Messages of the RDMA transport and the private data of its connections.
#include "tests/fuzz/input.h"
#include "transport/rdma/messages.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::transport::rdma;

enum Kind : std::uint8_t { kMessage = 0, kHello = 1, kAnswer = 2, kKinds = 3 };

void take_message(std::span<const std::byte> bytes) {
  const auto message = decode(bytes);
  if (!message) return;
  require(message->error.has_value() == (message->type == MessageType::kError), "errors say why");
  std::array<std::byte, kMaxMessageBytes> again{};
  const std::size_t length = encode(*message, again);
  require(length <= again.size() && bool(decode(std::span(again).first(length))),
          "a message survives");
}

void take(Input input) {
  switch (static_cast<Kind>(input.number<std::uint8_t>() % kKinds)) {
    case kMessage:
      return take_message(input.rest());
    case kHello:
      if (const auto hello = decode_hello(input.rest())) {
        require(hello->token.size() <= gcr::transport::kMaxRdmaTokenBytes, "a token has a bound");
        const auto again = decode_hello(encode(*hello));
        require(again && again->token == hello->token, "a hello survives");
      }
      return;
    default:
      if (const auto answer = decode_answer(input.rest())) {
        require(encode_answer(*answer).size() <= kMaxAnswerBytes, "an answer has a bound");
      }
  }
}

std::string seed(const Message& message) {
  std::array<std::byte, kMaxMessageBytes> bytes{};
  const std::size_t length = encode(message, bytes);
  return Script().number(kMessage).bytes(std::span(bytes).first(length));
}

}  // namespace

std::vector<std::string> seeds() {
  const Error refusal(Code::kPermissionDenied, "the token is not this transfer's");
  return {
      seed({.type = MessageType::kRegionQuery, .region = 5, .number = 1}),
      seed({.type = MessageType::kLanded, .region = 5, .number = 2, .offset = 4096, .length = 9}),
      seed({.type = MessageType::kError, .error = refusal}),
      Script().number(kHello).bytes(
          encode(Hello{.lane = 0, .lanes = 2, .depth = 16, .token = "a token"})),
      Script().number(kAnswer).bytes(encode_answer(std::nullopt)),
      Script().number(kAnswer).bytes(encode_answer(refusal))};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
