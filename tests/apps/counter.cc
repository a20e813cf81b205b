// counter: answers every UDP packet with the next number. The number is in VRAM, in a buffer of 2
// MiB, and a second time in a variable of the module; a kernel increments both. The first answer is
// 101; if the two ever differ, the answer reports it. SIGTERM ends it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "src/base/units.h"
#include "tests/apps/driver.h"
#include "tests/apps/vram_counter.h"
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

constexpr std::uint64_t kFirstNumber = 100;

struct Options {
  std::string bind = "0.0.0.0";
  std::uint16_t port = 9000;
  std::uint64_t vram_bytes = 0;
  std::uint64_t piece_bytes = 64 * kMiB;
  int device = 0;
};

int open_socket(const Options& options) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(options.port);
  if (::inet_pton(AF_INET, options.bind.c_str(), &address.sin_addr) != 1) {
    fail("bind to " + options.bind, "not an IPv4 address");
  }
  const int socket = ::socket(AF_INET, SOCK_DGRAM, 0);
  if (socket < 0 ||
      ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    fail("bind to " + options.bind + ":" + std::to_string(options.port), std::strerror(errno));
  }
  return socket;
}

/// Opens a file for reading and keeps it open.
std::string open_file(std::string path) {
  while (path.ends_with('\n')) path.pop_back();
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC) >= 0 ? "opened\n" : "not opened\n";
}

/// "verify" checks the pattern, "open FILE" opens a file; anything else increments.
std::string answer(const VramCounter& counter, const Ballast& ballast, std::string_view request) {
  if (request.starts_with("verify")) return ballast.intact() ? "intact\n" : "corrupt\n";
  if (request.starts_with("open ")) return open_file(std::string(request.substr(5)));
  const auto [number, twin] = counter.next();
  if (number != twin)
    return "mismatch " + std::to_string(number) + " " + std::to_string(twin) + "\n";
  return std::to_string(number) + "\n";
}

int run(const Options& options) {
  catch_termination();
  const Gpu gpu(options.device);
  const VramCounter counter(gpu, kFirstNumber);
  const Ballast ballast(gpu, options.vram_bytes, options.piece_bytes);
  const int socket = open_socket(options);
  std::printf("listening on %s:%u\n", options.bind.c_str(), options.port);
  std::fflush(stdout);
  while (!termination_requested()) {
    char request[256];
    sockaddr_in peer{};
    socklen_t length = sizeof(peer);
    const ssize_t received = ::recvfrom(socket, request, sizeof(request), 0,
                                        reinterpret_cast<sockaddr*>(&peer), &length);
    if (received < 0) continue;
    const std::string reply =
        answer(counter, ballast, {request, static_cast<std::size_t>(received)});
    ::sendto(socket, reply.data(), reply.size(), 0, reinterpret_cast<const sockaddr*>(&peer),
             length);
  }
  ::close(socket);
  return 0;
}

}  // namespace
}  // namespace gcr::apps

int main(int argc, char** argv) {
  gcr::apps::Options options;
  gcr::test::CommandLine line("Answers UDP packets with a number that is counted in VRAM");
  line.add("--bind", options.bind, "IPv4 address to listen on");
  line.add("--port", options.port, "UDP port");
  line.add_size("--vram", options.vram_bytes,
                "more VRAM to hold, filled with a pattern (send \"verify\")");
  line.add_size("--piece", options.piece_bytes, "size of its buffers (default 64M)").positive();
  line.add("--device", options.device, "device ordinal");
  line.parse(argc, argv);
  return gcr::apps::run(options);
}
