// The side of the door on which the checkpoint functions are called.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "tests/softgpu/engine/door.h"

namespace gcr::softgpu {
namespace {

/// A process's number in its own (innermost) PID namespace; -1 if it has ended.
int own_pid_of(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (!line.starts_with("NSpid:")) continue;
    std::istringstream numbers(line.substr(6));
    int number = -1;
    while (numbers >> number) {
    }
    return number;
  }
  return -1;
}

/// Opens the card of that process, if descriptor `name` is one; the open file serves as a lock.
UniqueFd open_card(const std::string& directory, const std::string& name, int own_pid,
                   Vendor vendor, DoorCard* card) {
  char target[64];
  const std::string path = directory + "/" + name;
  const ssize_t length = ::readlink(path.c_str(), target, sizeof(target));
  if (length <= 0 ||
      std::string_view(target, length) != "/memfd:" + std::string(kDoorName) + " (deleted)") {
    return {};
  }
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file || ::pread(file.get(), card, sizeof(*card), 0) != sizeof(*card) ||
      card->magic != kDoorMagic || card->version != kDoorVersion || card->pid != own_pid ||
      card->vendor != vendor) {
    return {};
  }
  return file;
}

UniqueFd find_card(int pid, Vendor vendor, DoorCard* card) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
  if (!directory) return {};
  const int own_pid = own_pid_of(pid);
  while (const dirent* entry = ::readdir(directory.get())) {
    if (UniqueFd file = open_card(path, entry->d_name, own_pid, vendor, card)) return file;
  }
  return {};
}

bool send_request(int socket, const DeviceTable& machine, const DoorRequest& request) {
  iovec part{const_cast<DoorRequest*>(&request), sizeof(request)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDevices)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (request.op == DoorOp::kRestore && machine.count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * machine.count);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * machine.count);
    for (int i = 0; i < machine.count; ++i) {
      const int file = machine.devices[i].directory.get();
      std::memcpy(CMSG_DATA(head) + i * sizeof(int), &file, sizeof(int));
    }
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(request);
}

/// Waits for the reply to this request, or for the process to end.
bool receive_reply(int socket, int process, std::uint32_t sequence, DoorReply* reply) {
  do {
    pollfd waits[2] = {{socket, POLLIN, 0}, {process, POLLIN, 0}};
    while (::poll(waits, 2, -1) < 0) {
      if (errno != EINTR) return false;
    }
    if ((waits[0].revents & POLLIN) == 0) return false;
    if (::recv(socket, reply, sizeof(*reply), 0) != sizeof(*reply)) return false;
  } while (reply->sequence != sequence);
  return true;
}

}  // namespace

Result ask_door(const DeviceTable& machine, int pid, const DoorRequest& wanted, DoorReply* reply) {
  DoorRequest request = wanted;
  if (::getrandom(&request.sequence, sizeof(request.sequence), 0) < 0) {
    return Result::kOperatingSystem;
  }
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return Result::kInvalidValue;
  DoorCard card{};
  const UniqueFd file = find_card(pid, machine.vendor, &card);
  if (!file) return Result::kNotInitialized;
  if (::flock(file.get(), LOCK_EX) != 0) return Result::kOperatingSystem;
  const UniqueFd socket(
      static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), card.caller_fd, 0)));
  if (!socket) return Result::kNotPermitted;
  if (!send_request(socket.get(), machine, request) ||
      !receive_reply(socket.get(), process.get(), request.sequence, reply)) {
    return Result::kOperatingSystem;
  }
  return reply->result;
}

}  // namespace gcr::softgpu
