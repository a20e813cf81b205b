// CRIU with an accomplice in the process: it dumps, then the images are changed, and sent as CRIU
// sends them (streamer.h).
//
// Usage: forging_criu FIELD CRIU ARGUMENT…
//        forging_criu FIELD DIRECTORY        changes the images in this directory
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "migrate-agent/criu/launch/launch.h"
#include "src/base/descriptor_passing.h"
#include "src/base/unique_fd.h"
#include "tests/criu/forge.h"

namespace {

namespace fs = std::filesystem;
using gcr::UniqueFd;

bool put_all(int fd, const std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (put <= 0) return false;
    done += static_cast<std::size_t>(put);
  }
  return true;
}

bool send_image(int socket, const std::string& name, const std::string& content) {
  gcr::criu::wire::StreamerRequest request;
  request.set_filename(name);
  const std::string bytes = request.SerializeAsString();
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::string message(sizeof(length), '\0');
  std::memcpy(message.data(), &length, sizeof(length));
  int ends[2];
  if (!put_all(socket, message + bytes) || ::pipe(ends) != 0) return false;
  UniqueFd reading(ends[0]), writing(ends[1]);
  const std::byte one{};
  if (gcr::send_with_descriptors(socket, {&one, 1}, {&ends[0], 1}, 0) != 1) return false;
  reading.reset();
  return put_all(writing.get(), content);
}

bool send_images(const fs::path& directory) {
  std::map<std::string, std::string> images;  // all read before the agent writes files of that name
  for (const std::string& name : gcr::criu::images::names(directory)) {
    images[name] = gcr::criu::images::read_file(directory / name).value();
  }
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory / "streamer-capture.sock";
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return false;
  }
  for (const auto& [name, content] : images) {
    if (!send_image(socket.get(), name, content)) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  if (argc == 3) {
    gcr::criu::test::forge_credentials(argv[2], argv[1]);
    return 0;
  }
  std::vector<char*> command(argv + 2, argv + argc);
  std::erase_if(command, [](const char* word) { return std::string_view(word) == "--stream"; });
  command.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execv(command.front(), command.data());
    ::_exit(127);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
  if (WEXITSTATUS(status) != 0) return WEXITSTATUS(status);
  const fs::path images = "/proc/self/fd/" + std::to_string(gcr::criu::launch::kImagesFd);
  gcr::criu::test::forge_credentials(images, argv[1]);
  return send_images(images) ? 0 : 1;
}
