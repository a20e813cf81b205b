// counter: answers every UDP packet with the next number. The number lives in VRAM, in a buffer of
// 2 MiB, and a second time in a variable of the module; a kernel increments both. The first answer
// is 101; should the two ever differ, the answer says so. SIGTERM ends it.
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
#include "tests/support/command_line.h"

namespace gcr::apps {
namespace {

constexpr std::uint64_t kFirstNumber = 100;
constexpr std::uint64_t kPatternSeed = 0x636f756e74657200;

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

/// The buffers of --vram: each filled with a pattern whose checksum was taken at the start.
class Ballast {
 public:
  Ballast(const Gpu& gpu, std::uint64_t bytes, std::uint64_t piece_bytes)
      : gpu_(gpu), sum_(gpu.allocate(sizeof(sum_))) {
    for (std::uint64_t left = bytes; left > 0;) {
      const std::uint64_t size = std::min<std::uint64_t>(left, piece_bytes);
      buffers_.push_back({gpu.allocate(size), size / 8});
      gpu.launch("gcr_stencil_init",
                 {buffers_.back().address, buffers_.back().words, kPatternSeed + left},
                 buffers_.back().words);
      left -= size;
    }
    expected_ = checksum();
  }

  bool intact() const { return checksum() == expected_; }

 private:
  struct Buffer {
    CUdeviceptr address;
    std::uint64_t words;
  };

  std::uint64_t checksum() const {
    gpu_.write_word(sum_, 0);
    std::uint64_t seed = 0;
    for (const Buffer& buffer : buffers_) {
      gpu_.launch("gcr_stencil_checksum", {buffer.address, buffer.words, seed, sum_}, buffer.words);
      seed += buffer.words;
    }
    return gpu_.read_word(sum_);
  }

  const Gpu& gpu_;
  CUdeviceptr sum_;
  std::vector<Buffer> buffers_;
  std::uint64_t expected_ = 0;
};

/// Opens a file for reading and keeps it.
std::string open_file(std::string path) {
  while (path.ends_with('\n')) path.pop_back();
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC) >= 0 ? "opened\n" : "not opened\n";
}

/// "verify" asks for the pattern, "open FILE" opens a file; anything else increments.
std::string answer(const Gpu& gpu, CUdeviceptr number, CUdeviceptr twin, const Ballast& ballast,
                   std::string_view request) {
  if (request.starts_with("verify")) return ballast.intact() ? "intact\n" : "corrupt\n";
  if (request.starts_with("open ")) return open_file(std::string(request.substr(5)));
  gpu.launch("gcr_counter_increment", {number}, 1);
  const std::uint64_t value = gpu.read_word(number);
  const std::uint64_t second = gpu.read_word(twin);
  if (value != second) {
    return "mismatch " + std::to_string(value) + " " + std::to_string(second) + "\n";
  }
  return std::to_string(value) + "\n";
}

int run(const Options& options) {
  catch_termination();
  const Gpu gpu(options.device);
  const CUdeviceptr number = gpu.allocate(kChunkBytes);
  gpu.write_word(number, kFirstNumber);
  const CUdeviceptr twin = gpu.variable("gcr_counter_twin");
  const Ballast ballast(gpu, round_up(options.vram_bytes, 8), round_up(options.piece_bytes, 8));
  const int socket = open_socket(options);
  std::printf("listening on %s:%u\n", options.bind.c_str(), options.port);
  std::fflush(stdout);
  while (!termination_asked()) {
    char request[256];
    sockaddr_in peer{};
    socklen_t length = sizeof(peer);
    const ssize_t received = ::recvfrom(socket, request, sizeof(request), 0,
                                        reinterpret_cast<sockaddr*>(&peer), &length);
    if (received < 0) continue;
    const std::string reply =
        answer(gpu, number, twin, ballast, {request, static_cast<std::size_t>(received)});
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
