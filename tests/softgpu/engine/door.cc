#include "tests/softgpu/engine/door.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tests/softgpu/engine/process.h"

namespace gcr::softgpu {
namespace {

constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

/// One request with its descriptors. False: the other end is closed.
bool receive(int socket, DoorRequest* request, std::array<UniqueFd, kMaxDevices>& files) {
  iovec part{request, sizeof(*request)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDevices)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received = 0;
  do {
    received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received <= 0) return false;
  if (received != sizeof(*request)) request->version = 0;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count && i < files.size(); ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
      files[i].reset(file);
    }
  }
  return true;
}

}  // namespace

Result Door::open() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Result::kOperatingSystem;
  }
  own_end_.reset(ends[0]);
  caller_end_.reset(ends[1]);
  card_.reset(::memfd_create(kDoorName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const DoorCard card{kDoorMagic, kDoorVersion, caller_end_.get(), ::getpid(),
                      process_->devices.vendor};
  if (!card_ || ::write(card_.get(), &card, sizeof(card)) != sizeof(card) ||
      ::fcntl(card_.get(), F_ADD_SEALS, kSeals) != 0) {
    return Result::kOperatingSystem;
  }
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread([this] { serve(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return Result::kSuccess;
}

void Door::forget() {
  card_.reset();
  own_end_.reset();
  caller_end_.reset();
}

void Door::serve() {
  ::pthread_setname_np(::pthread_self(), "softgpu-restore");
  while (true) {
    DoorRequest request{};
    std::array<UniqueFd, kMaxDevices> files;
    if (!receive(own_end_.get(), &request, files)) return;
    DoorReply reply{};
    reply.result = request.version == kDoorVersion ? handle(request, files) : Result::kNotSupported;
    reply.state = state_;
    reply.thread = ::gettid();
    reply.sequence = request.sequence;
    ::send(own_end_.get(), &reply, sizeof(reply), MSG_NOSIGNAL);
  }
}

Result Door::handle(const DoorRequest& request, std::array<UniqueFd, kMaxDevices>& directories) {
  switch (request.op) {
    case DoorOp::kState:
      return Result::kSuccess;
    case DoorOp::kLock:
      return lock(request.timeout_ms);
    case DoorOp::kCheckpoint:
      return checkpoint();
    case DoorOp::kRestore:
      return restore(request, directories);
    case DoorOp::kUnlock:
      return unlock();
    case DoorOp::kInvalid:
      break;
  }
  return Result::kInvalidValue;
}

Result Door::lock(std::uint32_t timeout_ms) {
  if (state_ != ProcessState::kRunning) return Result::kIllegalState;
  if (process_->profiled) return Result::kNotSupported;
  Deadline deadline;
  if (timeout_ms != 0) {
    deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  }
  if (!process_->gate.close(deadline)) return Result::kNotReady;
  if (!process_->scheduler->wait_idle(deadline)) {
    process_->gate.open();
    return Result::kNotReady;
  }
  state_ = ProcessState::kLocked;
  return Result::kSuccess;
}

Result Door::checkpoint() {
  if (state_ != ProcessState::kLocked) return Result::kIllegalState;
  if (const Result result = process_->memory.checkpointable()) return result;
  if (const Result result = process_->memory.park()) return result;
  for (int i = 0; i < process_->devices.count; ++i) process_->devices.devices[i].directory.reset();
  process_->device_file.close();
  state_ = ProcessState::kCheckpointed;
  return Result::kSuccess;
}

namespace {

/// Which device of the new machine each ordinal becomes. Every GPU of the old machine must be named
/// by a pair (or, without pairs, exist itself), no two may become the same one. A process that saw
/// only some of its machine's accepts no others in the pairs.
Result choose_devices(const DeviceTable& old, const DoorRequest& request,
                      std::array<int, kMaxDevices>* chosen) {
  std::array<bool, kMaxDevices> taken{};
  if (old.devices[0].first && request.pair_count > static_cast<unsigned>(old.count)) {
    return Result::kInvalidValue;
  }
  for (int ordinal = 0; ordinal < old.count; ++ordinal) {
    const Uuid& from = old.devices[ordinal].uuid;
    const Uuid* to = request.pair_count == 0 ? &from : nullptr;
    for (std::uint32_t i = 0; i < request.pair_count; ++i) {
      if (request.pairs[i].from == from) to = &request.pairs[i].to;
    }
    if (to == nullptr) return Result::kInvalidValue;
    int found = -1;
    for (std::uint32_t i = 0; i < request.device_count; ++i) {
      if (request.devices[i].uuid == *to) found = static_cast<int>(i);
    }
    if (found < 0 || taken[found]) return Result::kInvalidValue;
    taken[found] = true;
    (*chosen)[ordinal] = found;
  }
  return Result::kSuccess;
}

/// Gives every ordinal the device of the new machine that was chosen for it.
Result adopt_devices(DeviceTable* table, const DoorRequest& request,
                     const std::array<int, kMaxDevices>& chosen,
                     std::array<UniqueFd, kMaxDevices>& directories) {
  for (int ordinal = 0; ordinal < table->count; ++ordinal) {
    Device& device = table->devices[ordinal];
    const DoorDevice& target = request.devices[chosen[ordinal]];
    if (const Result result = device.adopt(std::move(directories[chosen[ordinal]]))) {
      return result;
    }
    device.uuid = target.uuid;
    device.total_bytes = target.total_bytes;
    device.mounted = target.mounted != 0;
    device.place = chosen[ordinal];
  }
  return Result::kSuccess;
}

}  // namespace

Result Door::restore(const DoorRequest& request, std::array<UniqueFd, kMaxDevices>& directories) {
  if (state_ != ProcessState::kCheckpointed) return Result::kIllegalState;
  if (request.device_count > kMaxDevices || request.pair_count > kMaxDevices) {
    return Result::kInvalidValue;
  }
  DeviceTable& table = process_->devices;
  std::array<int, kMaxDevices> chosen{};
  if (const Result result = choose_devices(table, request, &chosen)) return result;
  std::array<Uuid, kMaxDevices> before;
  for (int ordinal = 0; ordinal < table.count; ++ordinal) {
    before[ordinal] = table.devices[ordinal].uuid;
  }
  Result result = process_->device_file.open();
  if (result == Result::kSuccess) result = adopt_devices(&table, request, chosen, directories);
  if (result == Result::kSuccess) result = process_->memory.unpark();
  if (result == Result::kSuccess) {
    state_ = ProcessState::kLocked;
    return Result::kSuccess;
  }
  for (int ordinal = 0; ordinal < table.count; ++ordinal) {
    table.devices[ordinal].uuid = before[ordinal];
    table.devices[ordinal].directory.reset();
  }
  process_->device_file.close();
  return result;
}

Result Door::unlock() {
  if (state_ != ProcessState::kLocked) return Result::kIllegalState;
  process_->gate.open();
  state_ = ProcessState::kRunning;
  return Result::kSuccess;
}

}  // namespace gcr::softgpu
