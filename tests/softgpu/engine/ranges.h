// The parts of the software GPU's memory: physical allocations, and the address ranges where they
// are mapped.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "src/base/unique_fd.h"

namespace gcr::softgpu {

struct Context;

inline constexpr int kReadWrite = PROT_READ | PROT_WRITE;
inline constexpr int kHostOrdinal = -1;  ///< in place of a device's: memory of the host
inline constexpr unsigned kByDescriptor =
    1;  ///< a handle type: what can be exported as a descriptor

/// The location or user of memory, with both interfaces' numbers.
enum class Place { kInvalid = 0, kDevice = 1, kHost = 2, kHostNuma = 3 };
struct Location {
  Place place = Place::kInvalid;
  int id = 0;  ///< the device's ordinal or the NUMA node
};

/// The request for physical memory.
struct AllocationProperties {
  Location location;
  unsigned handle_types = 0;
  std::array<std::byte, 8> flags{};  ///< the face's own, returned unchanged
};

/// The access of a location from now on: PROT_NONE, PROT_READ or both.
struct AccessGrant {
  Location location;
  int protection = PROT_NONE;
};

/// A reference to physical memory.
using MemoryHandle = unsigned long long;
inline constexpr std::size_t kIpcHandleBytes = 64;

enum class RangeKind {
  kDriver,      ///< plain allocations, module globals
  kPool,        ///< stream-ordered
  kGraph,       ///< the same, by a graph
  kVmm,         ///< virtual memory management
  kIpc,         ///< another process's plain allocation
  kManaged,     ///< managed memory
  kHost,        ///< page-locked: unmapped by the driver
  kHostForeign  ///< registered by the program
};

/// VRAM, or memory of the host that was created for mapping. Lives while a handle or a mapping
/// refers to it.
struct Physical {
  int ordinal = 0;  ///< kHostOrdinal: on the host
  std::uint64_t bytes = 0;
  UniqueFd file;  ///< VMM only: driver-owned memory is held by its mapping only
  bool vmm = false;
  bool imported = false;
  bool exported = false;   ///< a descriptor of it was exported
  bool ipc_given = false;  ///< a legacy IPC handle of it was exported
  dev_t file_system = 0;   ///< of imported driver-owned memory: its file
  ino_t inode = 0;
  int ipc_opens = 0;
  void* host_copy = nullptr;  ///< the content between Checkpoint and Restore
  std::uintptr_t home = 0;    ///< where driver-owned memory is mapped
  AllocationProperties properties{};
};

/// Access to mapped memory: a bit for each device by ordinal, PROT_* for the CPU.
struct Access {
  std::uint32_t readers = 0;
  std::uint32_t writers = 0;
  int host = PROT_NONE;

  void give(const AccessGrant& access);
  int of_device(int ordinal) const;
  /// The access that at least one of them has.
  int widest() const;
};

/// The state of a range of addresses.
struct RangeInfo {
  std::uintptr_t start = 0;
  std::uint64_t bytes = 0;
  RangeKind kind = RangeKind::kDriver;
  Access access;         ///< kVmm only
  int ordinal = 0;       ///< of the device that the memory is on; kHostOrdinal: on the host
  int told_ordinal = 0;  ///< the same in pointer queries; from Memory::find
  Context* context = nullptr;
  const void* pool = nullptr;
  std::uint64_t id = 0;
  unsigned host_flags = 0;
  bool sync_memops = false;
  unsigned handle_types = 0;

  bool on_host() const {
    return kind == RangeKind::kHost || kind == RangeKind::kHostForeign ||
           (kind == RangeKind::kVmm && ordinal == kHostOrdinal);
  }
  /// PROT_* for copies: the access of any device or the CPU
  int protection() const { return kind == RangeKind::kVmm ? access.widest() : kReadWrite; }
};

struct Range : RangeInfo {
  std::shared_ptr<Physical> physical;  ///< null for host and managed memory
  std::uintptr_t by_devices = 0;       ///< where devices have this host memory mapped; 0: nowhere
};

constexpr unsigned bit(RangeKind kind) { return 1U << static_cast<unsigned>(kind); }

}  // namespace gcr::softgpu
