#include "migrate-agent/process/pages/process_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

Status read(pid_t pid, int memory, std::uint64_t address, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(memory, bytes.data(), bytes.size(), static_cast<off_t>(address));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return Error(Code::kIo,
                   fmt::format("cannot read the memory of process {} at {:#x}: {}", pid, address,
                               got < 0 ? std::generic_category().message(errno)
                                       : "the process has executed another program"));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    address += static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace

Result<ReadMemory> open_memory(pid_t pid, const MayMove& may_move) {
  // That of its parent's program would outlive what it executes.
  if (procfs::is_in_vfork(pid)) {
    return Error(Code::kNotFound, fmt::format("process {} has no memory of its own yet", pid));
  }
  const std::string path = fmt::format("/proc/{}/mem", pid);
  auto memory = std::make_shared<const UniqueFd>(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!*memory) return Error::from_errno(errno, "cannot open " + path);
  if (may_move) GCR_TRY(may_move(pid));
  return ReadMemory([pid, memory](std::uint64_t address, std::span<std::byte> bytes) {
    return read(pid, memory->get(), address, bytes);
  });
}

}  // namespace gcr::process
