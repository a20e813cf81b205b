#include "migrate-agent/linux/procfs/memory_of.h"

#include <errno.h>
#include <fmt/format.h>

namespace gcr::procfs {
namespace {

Status outcome(ssize_t moved, std::size_t wanted, const char* doing, pid_t pid) {
  if (moved == static_cast<ssize_t>(wanted)) return {};
  return Error::from_errno(moved < 0 ? errno : EFAULT,
                           fmt::format("cannot {} the memory of process {}", doing, pid));
}

iovec part(std::uint64_t address, std::size_t bytes) {
  return {reinterpret_cast<void*>(address), bytes};
}

}  // namespace

Status read_memory(pid_t pid, std::span<const iovec> there, std::span<std::byte> bytes) {
  const iovec here{bytes.data(), bytes.size()};
  const ssize_t got = ::process_vm_readv(pid, &here, 1, there.data(), there.size(), 0);
  return outcome(got, bytes.size(), "read", pid);
}

Status read_memory(pid_t pid, std::uint64_t address, std::span<std::byte> bytes) {
  const iovec there = part(address, bytes.size());
  return read_memory(pid, {&there, 1}, bytes);
}

Status write_memory(pid_t pid, std::uint64_t address, std::span<const std::byte> bytes) {
  const iovec here{const_cast<std::byte*>(bytes.data()), bytes.size()};
  const iovec there = part(address, bytes.size());
  return outcome(::process_vm_writev(pid, &here, 1, &there, 1, 0), bytes.size(), "write", pid);
}

}  // namespace gcr::procfs
