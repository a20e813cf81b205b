// Keeps a number in managed memory and answers every UDP packet on the given port with the next
// one: a program that cannot be migrated, to be refused.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/apps/driver.h"

namespace {

CUdeviceptr allocate_managed(const gcr::apps::Gpu& gpu, std::size_t bytes) {
  constexpr unsigned kAttachGlobal = 1;
  CUdeviceptr address = 0;
  gpu.check(gpu.driver().alloc_managed(&address, bytes, kAttachGlobal), "allocate managed memory");
  return address;
}

int open_socket(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const int socket = ::socket(AF_INET, SOCK_DGRAM, 0);
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    gcr::apps::fail("bind", "port " + std::to_string(port));
  }
  return socket;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) gcr::apps::fail("start", "usage: managed_memory PORT");
  const gcr::apps::Gpu gpu(0);
  const CUdeviceptr number = allocate_managed(gpu, 4096);
  gpu.write_word(number, 0);
  const int socket = open_socket(static_cast<std::uint16_t>(std::atoi(argv[1])));
  std::puts("listening");
  std::fflush(stdout);
  for (;;) {
    char request[16];
    sockaddr_in peer{};
    socklen_t length = sizeof(peer);
    if (::recvfrom(socket, request, sizeof(request), 0, reinterpret_cast<sockaddr*>(&peer),
                   &length) < 0) {
      return 1;
    }
    gpu.launch("gcr_counter_increment", {number}, 1);
    const std::string reply = std::to_string(gpu.read_word(number));
    ::sendto(socket, reply.data(), reply.size(), 0, reinterpret_cast<const sockaddr*>(&peer),
             length);
  }
}
