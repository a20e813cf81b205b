// Headers, hellos and errors of the TCP transport: an accepted one encodes to the same bytes.
#include "tests/fuzz/input.h"
#include "transport/tcp/frame.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::transport;

template <class Bytes>
Bytes filled(Input& input) {
  Bytes bytes{};
  const auto from = input.bytes(bytes.size());
  std::copy(from.begin(), from.end(), bytes.begin());
  return bytes;
}

void take(Input input) {
  switch (input.number<std::uint8_t>() % 3) {
    case 0: {
      const auto bytes = filled<HeaderBytes>(input);
      const auto header = decode(bytes);
      if (header) require(encode(*header) == bytes, "a header means one thing");
      break;
    }
    case 1: {
      const auto bytes = filled<HelloBytes>(input);
      const auto hello = decode(bytes);
      if (!hello) break;
      require(hello->token.size() <= kMaxTokenBytes, "a token has a bound");
      const auto again = decode(encode(*hello));
      require(again && again->token == hello->token, "a hello survives");
      break;
    }
    default: {
      const Error error = decode_error(input.rest());
      require(error.code() != Code::kInvalid && error.code() <= Code::kInternal, "a known code");
      require(error.message().find('\n') == std::string::npos, "one line");
    }
  }
}

}  // namespace

std::vector<std::string> seeds() {
  const FrameHeader write{.type = FrameType::kWrite,
                          .asks = true,
                          .region = 5,
                          .length_bytes = 4096,
                          .offset = 8192,
                          .sequence = 7};
  const Hello hello{.lane = 1, .lanes = 4, .session = Uuid{{7}}, .token = "a token"};
  return {Script().number<std::uint8_t>(0).bytes(encode(write)),
          Script().number<std::uint8_t>(1).bytes(encode(hello)),
          Script().number<std::uint8_t>(2).text(
              encode_error(Error(Code::kNotFound, "there is no region 6")))};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
