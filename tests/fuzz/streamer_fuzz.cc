// CRIU's streamer connection: names and pipes, as the agent handles them during a dump.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "migrate-agent/criu/runs/streamer.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/send_packet.h"

namespace gcr::fuzz {
namespace {

/// CRIU's actions: sends bytes, sends one byte with the end of a pipe, or writes a whole request.
enum Step : std::uint8_t { kBytes = 0, kPipe = 1, kRequest = 2, kTwoPipes = 3, kSteps = 4 };

const std::filesystem::path& directory() {
  static const std::filesystem::path path = [] {
    std::string name = std::filesystem::temp_directory_path() / "gcr-fuzz-XXXXXX";
    require(::mkdtemp(name.data()) != nullptr, "a directory");
    static std::string kept = name;
    std::atexit([] { std::filesystem::remove_all(kept); });
    return name;
  }();
  return path;
}

UniqueFd connect_to_streamer() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory() / "streamer-capture.sock";
  std::copy(path.begin(), path.end(), address.sun_path);
  require(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
          "a connection");
  return socket;
}

void send_bytes(const UniqueFd& socket, std::span<const std::byte> bytes) {
  (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// One byte and the reading end of a pipe that holds `content`, or two such ends.
void send_pipes(const UniqueFd& socket, std::span<const std::byte> content, std::size_t count) {
  std::array<int, 2> ends{};
  require(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0, "a pipe");
  const UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  (void)!::write(writing.get(), content.data(), content.size());
  const std::byte byte{};
  const std::array<int, 2> sent = {reading.get(), reading.get()};
  send_packet(socket.get(), std::span(&byte, 1), std::span(sent).first(count));
}

std::string request_for(std::string_view name) {
  criu::wire::StreamerRequest request;
  request.set_filename(std::string(name));
  const std::string bytes = request.SerializeAsString();
  return Script().number(static_cast<std::uint32_t>(bytes.size())).text(bytes);
}

void speak(const UniqueFd& socket, Input input) {
  while (!input.empty()) {
    const auto step = input.number<std::uint8_t>() % kSteps;
    const auto some = input.bytes(input.number<std::uint8_t>());
    if (step == kBytes) {
      send_bytes(socket, some);
    } else if (step == kRequest) {
      const std::string request =
          request_for({reinterpret_cast<const char*>(some.data()), some.size()});
      send_bytes(socket, std::as_bytes(std::span(request)));
      send_pipes(socket, input.bytes(input.number<std::uint8_t>()), 1);
    } else {
      send_pipes(socket, some, step == kPipe ? 1 : 2);
    }
  }
}

/// How many descriptors this process has: none may be leaked.
std::ptrdiff_t descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

void take(Input input) {
  directory();
  const std::ptrdiff_t before = descriptors();
  {
    auto streamer = criu::Streamer::listen(directory());
    require(bool(streamer), "a streamer");
    UniqueFd criu = connect_to_streamer();
    speak(criu, input);
    criu.reset();
    const auto images = streamer->collect([](const std::string& name, UniqueFd pipe) -> Status {
      require(name.find('/') == std::string::npos, "a plain name");
      char bytes[256];
      while (::read(pipe.get(), bytes, sizeof bytes) > 0) {
      }
      return {};
    });
    if (images) {
      for (const auto& [name, content] : *images) {
        require(name.find('/') == std::string::npos, "a plain name");
      }
    }
  }
  require(descriptors() == before, "every descriptor that came is closed");
}

std::string step(Step step, std::string_view bytes) {
  return Script().number(step).number(static_cast<std::uint8_t>(bytes.size())).text(bytes);
}

std::string image(std::string_view name, std::string_view content) {
  return Script()
      .text(step(kRequest, name))
      .number(static_cast<std::uint8_t>(content.size()))
      .text(content);
}

}  // namespace

std::vector<std::string> seeds() {
  return {Script().text(image("core-1.img", "core")).text(image("pages-1.img", "pages")),
          Script().text(step(kBytes, request_for("../inventory.img"))).text(step(kPipe, "x")),
          Script().text(step(kBytes, request_for("mm-1.img"))).text(step(kTwoPipes, "x"))};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
