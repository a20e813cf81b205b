// How a keeper is made: gcr-keeper is spawned with a socket and nothing else. It reports that it is
// ready, receives the descriptors by SCM_RIGHTS, and reports that it is armed (layout.h has the
// protocol). From then on it depends on no other process. Its descriptors are read with
// pidfd_getfd, by the numbers that the sealed table names: the keeper takes no part in that.
#include "migrate-agent/gpu/keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "migrate-agent/gpu/keeper/layout.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/descriptor_passing.h"
#include "src/base/socket_pair.h"

namespace gcr::keeper {
namespace {

using layout::Event;
using layout::Report;
using layout::TableHeader;

/// The socket's number in this process, above all numbers that the keeper's own descriptors get.
constexpr int kFirstFreeFd = 10;
/// For one packet: an unarmed keeper only waits for packets and answers.
constexpr timeval kPatience{10, 0};
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

Result<SocketPair> make_sockets() {
  GCR_ASSIGN(SocketPair pair, SocketPair::create("the keeper"));
  pair.theirs = UniqueFd(::fcntl(pair.theirs.get(), F_DUPFD_CLOEXEC, kFirstFreeFd));
  for (const int limit : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (::setsockopt(pair.ours.get(), SOL_SOCKET, limit, &kPatience, sizeof(kPatience)) != 0) {
      return Error::from_errno(errno, "cannot set a socket's timeout");
    }
  }
  if (!pair.theirs) return Error::from_errno(errno, "cannot copy a socket");
  return pair;
}

/// Starts the keeper with the descriptors of layout.h and no others, all signals at their defaults,
/// an empty environment, and a session of its own.
Result<pid_t> spawn(const std::filesystem::path& program, int socket) {
  const std::string path = std::filesystem::absolute(program).string();
  std::string name = program.filename().string();
  char* const argv[] = {name.data(), nullptr};
  char* const environment[] = {nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDWR, 0);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO, layout::kTableFd}) {
    ::posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO, fd);
  }
  ::posix_spawn_file_actions_adddup2(&actions, socket, layout::kSocketFd);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, layout::kTableFd + 1);
  ::posix_spawn_file_actions_addchdir_np(&actions, "/");
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t all;
  ::sigfillset(&all);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, path.c_str(), &actions, &attributes, argv, environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return Error::from_errno(error, "cannot start " + path);
  return pid;
}

Error failure_of(const Report& report) {
  if (report.event != Event::kFailed) {
    return Error(Code::kInternal, "the keeper sent an unexpected report");
  }
  const Error error = Error::from_errno(report.error, "the keeper failed");
  if (report.error != EMFILE) return error;
  return Error(Code::kResourceExhausted, "the keeper may not open that many files");
}

Status expect(int socket, Event event) {
  Report report{};
  ssize_t got = 0;
  do {
    got = ::recv(socket, &report, sizeof(report), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return Error::from_errno(errno, "cannot read the keeper's report");
  if (got != sizeof(report)) return Error(Code::kInternal, "the keeper has ended");
  if (report.event != event) return failure_of(report);
  return {};
}

/// Sends at most kMaxPassedDescriptors.
Status send_descriptors(int socket, std::span<const int> descriptors) {
  const char byte = 0;
  if (send_with_descriptors(socket, bytes_of(byte), descriptors, 0) >= 0) return {};
  return Error::from_errno(errno, "cannot send descriptors to the keeper");
}

Result<UniqueFd> make_table(std::span<const BufferDescriptor> buffers) {
  const TableHeader header{layout::kMagic, static_cast<std::uint32_t>(buffers.size()), 0};
  std::string content(reinterpret_cast<const char*>(&header), sizeof(header));
  const auto append = [&content](const auto& number) {
    content.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const BufferDescriptor& buffer : buffers) append(buffer.mapping.local_id);
  for (const BufferDescriptor& buffer : buffers) append(buffer.mapping.member.value);
  UniqueFd table(::memfd_create("gcr-keeper", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!table ||
      ::pwrite(table.get(), content.data(), content.size(), 0) !=
          static_cast<ssize_t>(content.size()) ||
      ::fcntl(table.get(), F_ADD_SEALS, kSeals) != 0) {
    return Error::from_errno(errno, "cannot make the keeper's table");
  }
  return table;
}

Error no_keeper(const journal::ProcessId& keeper) {
  return Error(Code::kNotFound,
               "process " + std::to_string(keeper.pid()) + " keeps no descriptors");
}

/// An armed keeper's table, in order.
Result<std::vector<gpu::Mapping>> read_table(int table, const journal::ProcessId& keeper) {
  TableHeader header{};
  struct stat status {};
  if (::fcntl(table, F_GET_SEALS) != kSeals || ::fstat(table, &status) != 0 ||
      ::pread(table, &header, sizeof(header), 0) != sizeof(header) ||
      header.magic != layout::kMagic || header.count > kMaxBuffers) {
    return no_keeper(keeper);
  }
  std::vector<std::uint32_t> words(3 * header.count);  // two for each id, then one for each member
  const std::size_t ids_bytes = 2 * header.count * sizeof(words[0]);
  const std::size_t all_bytes = words.size() * sizeof(words[0]);
  const ssize_t got = ::pread(table, words.data(), all_bytes, sizeof(header));
  if ((got != static_cast<ssize_t>(ids_bytes) && got != static_cast<ssize_t>(all_bytes)) ||
      status.st_size != static_cast<ssize_t>(sizeof(header)) + got) {
    return no_keeper(keeper);
  }
  std::vector<gpu::Mapping> mappings(header.count);
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    mappings[i].member.value = words[2 * header.count + i];
    ::memcpy(&mappings[i].local_id, &words[2 * i], sizeof(mappings[i].local_id));
  }
  return mappings;
}

Result<UniqueFd> take_descriptor(int process, int fd, const journal::ProcessId& keeper) {
  UniqueFd taken(static_cast<int>(::syscall(SYS_pidfd_getfd, process, fd, 0)));
  if (taken) return taken;
  if (errno == EBADF || errno == ESRCH) return no_keeper(keeper);
  return Error::from_errno(errno,
                           "cannot take descriptors of process " + std::to_string(keeper.pid()));
}

}  // namespace

Keeper::Keeper(pid_t pid, UniqueFd process, UniqueFd socket)
    : pid_(pid), process_(std::move(process)), socket_(std::move(socket)) {}

Keeper::Keeper(Keeper&& other) noexcept = default;

Keeper& Keeper::operator=(Keeper&& other) noexcept {
  if (this == &other) return *this;
  if (!armed_) (void)end();
  pid_ = other.pid_;
  start_time_ = other.start_time_;
  process_ = std::move(other.process_);
  socket_ = std::move(other.socket_);
  armed_ = other.armed_;
  return *this;
}

Keeper::~Keeper() {
  if (!armed_) (void)end();
}

Result<Keeper> Keeper::start_installed(const std::filesystem::path& reaper) {
  return start(reaper.parent_path() / "gcr-keeper");
}

Result<Keeper> Keeper::start(const std::filesystem::path& program) {
  auto started = [&]() -> Result<Keeper> {
    GCR_ASSIGN(SocketPair sockets, make_sockets());
    GCR_ASSIGN(const pid_t pid, spawn(program, sockets.theirs.get()));
    Keeper keeper(pid, procfs::pidfd_of_child(pid), std::move(sockets.ours));
    sockets.theirs.reset();  // so that its end shows here
    GCR_TRY(expect(keeper.socket_.get(), Event::kReady));
    keeper.start_time_ = procfs::read_stat(pid).value_or(procfs::Stat()).start_time;
    return keeper;
  }();
  if (!started) return started.error().while_doing("cannot start a keeper for the VRAM");
  return started;
}

journal::ProcessId Keeper::id() const {
  journal::ProcessId id;
  id.set_pid(pid_);
  id.set_start_time(start_time_);
  return id;
}

Status Keeper::arm(std::span<const BufferDescriptor> buffers) {
  const std::string doing =
      "cannot have " + std::to_string(buffers.size()) + " buffers of VRAM kept";
  if (armed_ || !process_ || buffers.size() > kMaxBuffers) {
    return Error(Code::kInvalidArgument, doing + ": too many, or the keeper was used before");
  }
  const Status armed = [&]() -> Status {
    GCR_ASSIGN(const UniqueFd table, make_table(buffers));
    const int number = table.get();
    GCR_TRY(send_descriptors(socket_.get(), {&number, 1}));
    std::vector<int> descriptors;
    for (const BufferDescriptor& buffer : buffers) descriptors.push_back(buffer.fd);
    for (std::span<const int> left = descriptors; !left.empty();) {
      const auto packet = left.first(std::min(left.size(), kMaxPassedDescriptors));
      GCR_TRY(send_descriptors(socket_.get(), packet));
      left = left.subspan(packet.size());
    }
    return expect(socket_.get(), Event::kArmed);
  }();
  if (!armed) return armed.error().while_doing(doing);
  armed_ = true;
  return {};
}

Status Keeper::end() {
  if (!process_) return {};
  if (!procfs::send_signal(process_.get(), SIGKILL) && errno != ESRCH) {
    return Error::from_errno(errno, "cannot end the keeper");
  }
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  process_.reset();
  socket_.reset();
  return {};
}

Result<gpu::MemberDescriptors> take_from(const journal::ProcessId& keeper) {
  GCR_ASSIGN(const auto process, procfs::Process::open(keeper.pid(), keeper.start_time()));
  GCR_ASSIGN(const UniqueFd table, take_descriptor(process.pidfd(), layout::kTableFd, keeper));
  GCR_ASSIGN(const std::vector<gpu::Mapping> mappings, read_table(table.get(), keeper));
  gpu::MemberDescriptors taken;
  int number = layout::kFirstBufferFd;
  for (const gpu::Mapping& mapping : mappings) {
    GCR_ASSIGN(UniqueFd descriptor, take_descriptor(process.pidfd(), number++, keeper));
    taken[mapping.member].emplace_back(mapping.local_id, std::move(descriptor));
  }
  return taken;
}

Status end_keeper(const journal::ProcessId& keeper) {
  const auto process = procfs::Process::open(keeper.pid(), keeper.start_time());
  if (!process && process.error().code() == Code::kNotFound) return {};
  GCR_TRY(process);
  const Status sent = process->send(SIGKILL);
  if (!sent && sent.error().code() != Code::kNotFound) {
    return sent.error().while_doing("cannot end the keeper");
  }
  return process->wait_until_ended();
}

}  // namespace gcr::keeper
