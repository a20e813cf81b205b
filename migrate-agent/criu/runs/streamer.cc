#include "migrate-agent/criu/runs/streamer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "src/base/descriptor_passing.h"

namespace gcr::criu {
namespace {

constexpr char kSocketName[] = "streamer-capture.sock";
constexpr std::uint32_t kMaxRequestBytes = 4096;
/// Memory of processes, and of AMD GPUs.
constexpr std::string_view kMemory[] = {"pages-", "amdgpu-"};
/// The kernel's usual limit for a pipe (fs.pipe-max-size).
constexpr int kPipeBytes = 1 << 20;

/// An image that CRIU is writing.
struct OpenImage {
  std::string name;
  UniqueFd pipe;
  std::string content;
};

bool is_memory(std::string_view name) {
  return std::ranges::any_of(kMemory, [&](std::string_view one) { return name.starts_with(one); });
}

Error broken(const char* what) {
  return Error(Code::kInternal, std::string("CRIU's image streamer connection: ") + what);
}

/// Receives the images of one dump. Everything except take_on_thread() runs on one thread.
class Collector {
 public:
  Collector(UniqueFd connection, const TakeImage& take)
      : connection_(std::move(connection)), take_(take) {}

  Result<ImageContents> run() {
    Status status;
    while (status && (connection_ || !open_.empty())) status = wait_and_take();
    connection_.reset();
    open_.clear();
    for (std::thread& taker : takers_) taker.join();
    if (failure_) return *failure_;
    if (!status) return status.error();
    return std::move(done_);
  }

 private:
  Status wait_and_take() {
    std::vector<pollfd> watched;
    for (const OpenImage& image : open_) watched.push_back({image.pipe.get(), POLLIN, 0});
    if (connection_) watched.push_back({connection_.get(), POLLIN, 0});
    if (::poll(watched.data(), watched.size(), -1) < 0) {
      if (errno == EINTR) return {};
      return Error::from_errno(errno, "cannot wait for CRIU's images");
    }
    for (std::size_t i = open_.size(); i-- > 0;) {
      if (watched[i].revents == 0) continue;
      GCR_ASSIGN(const bool ended, read_some(open_[i]));
      if (!ended) continue;
      done_[open_[i].name] = std::move(open_[i].content);
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (connection_ && watched.back().revents != 0) return receive_request();
    return {};
  }

  Result<bool> read_some(OpenImage& image) {
    char bytes[65536];
    const ssize_t got = ::read(image.pipe.get(), bytes, sizeof(bytes));
    if (got < 0 && errno != EINTR) {
      return Error::from_errno(errno, "cannot read CRIU's image " + image.name);
    }
    if (got > 0) image.content.append(bytes, static_cast<std::size_t>(got));
    return got == 0;
  }

  Status receive_request() {
    std::uint32_t length = 0;
    const ssize_t got = ::recv(connection_.get(), &length, sizeof(length), MSG_WAITALL);
    if (got == 0) {
      connection_.reset();
      return {};
    }
    if (got != sizeof(length) || length > kMaxRequestBytes) return broken("no length");
    std::string bytes(length, '\0');
    wire::StreamerRequest request;
    if (::recv(connection_.get(), bytes.data(), length, MSG_WAITALL) != length ||
        !request.ParseFromString(bytes) || request.filename().find('/') != std::string::npos) {
      return broken("no name");
    }
    GCR_ASSIGN(UniqueFd pipe, receive_descriptor());
    if (is_memory(request.filename())) {
      ::fcntl(pipe.get(), F_SETPIPE_SZ, kPipeBytes);  // only slower without it
      takers_.emplace_back(&Collector::take_on_thread, this, request.filename(), std::move(pipe));
    } else {
      open_.push_back({request.filename(), std::move(pipe), {}});
    }
    return {};
  }

  Result<UniqueFd> receive_descriptor() {
    char byte = 0;
    int descriptor = -1;
    const ReceivedMessage received =
        receive_with_descriptors(connection_.get(), writable_bytes_of(byte), {&descriptor, 1}, 0);
    UniqueFd pipe(descriptor);
    if (received.length != 1 || !pipe) return broken("no pipe");
    if (received.truncated) return broken("more than one pipe");
    return pipe;
  }

  void take_on_thread(const std::string& name, UniqueFd pipe) {
    const Status taken = take_(name, std::move(pipe));
    if (taken) return;
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = taken.error();
  }

  UniqueFd connection_;
  const TakeImage& take_;
  std::vector<OpenImage> open_;
  ImageContents done_;
  std::vector<std::thread> takers_;
  std::mutex mutex_;
  std::optional<Error> failure_;
};

}  // namespace

Result<Streamer> Streamer::listen(const std::filesystem::path& directory) {
  const std::string doing = "cannot listen for CRIU's images in " + directory.string();
  UniqueFd at(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!at || !socket) return Error::from_errno(errno, doing);
  // Through /proc, because the path of a socket must be short.
  const std::string path = "/proc/self/fd/" + std::to_string(at.get()) + "/" + kSocketName;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  ::unlink(path.c_str());
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(socket.get(), 1) != 0) {
    return Error::from_errno(errno, doing);
  }
  return Streamer(std::move(socket));
}

Result<ImageContents> Streamer::collect(const TakeImage& take) {
  UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!connection) return Error::from_errno(errno, "cannot accept CRIU's connection");
  socket_.reset();
  return Collector(std::move(connection), take).run();
}

}  // namespace gcr::criu
