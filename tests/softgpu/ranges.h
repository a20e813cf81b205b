// What the memory of the software GPU consists of: physical allocations, and what is known of the
// address ranges where they are mapped.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "preload/cuda/abi/driver_abi.h"
#include "src/base/unique_fd.h"

namespace gcr::softgpu {

struct Context;

inline constexpr int kReadWrite = PROT_READ | PROT_WRITE;

enum class RangeKind {
  kDriver,      ///< cuMemAlloc, module globals
  kPool,        ///< stream-ordered
  kGraph,       ///< the same, by a graph
  kVmm,         ///< cuMemMap
  kIpc,         ///< another process's cuMemAlloc
  kManaged,     ///< cuMemAllocManaged
  kHost,        ///< cuMemAllocHost, cuMemHostAlloc: ours to unmap
  kHostForeign  ///< cuMemHostRegister
};

/// VRAM, or memory of cuMemCreate on the host. Lives while a handle or a mapping refers to it.
struct Physical {
  int ordinal = 0;  ///< CU_DEVICE_CPU: on the host
  std::uint64_t bytes = 0;
  UniqueFd file;  ///< VMM only: driver-owned memory is held by its mapping alone
  bool vmm = false;
  bool imported = false;
  bool exported = false;   ///< a descriptor of it was given out
  bool ipc_given = false;  ///< a legacy IPC handle of it was given out
  dev_t file_system = 0;   ///< of imported driver-owned memory: which file it is
  ino_t inode = 0;
  int ipc_opens = 0;
  void* host_copy = nullptr;  ///< the content between Checkpoint and Restore
  std::uintptr_t home = 0;    ///< where driver-owned memory is mapped
  CUmemAllocationProp properties{};
};

/// Who may do what with memory of cuMemMap: a bit for each device by ordinal, PROT_* for the CPU.
struct Access {
  std::uint32_t readers = 0;
  std::uint32_t writers = 0;
  int host = PROT_NONE;

  void give(const CUmemAccessDesc& access);
  int of_device(int ordinal) const;
  /// What at least one of them may.
  int widest() const;
};

/// What is known of a range of addresses.
struct RangeInfo {
  std::uintptr_t start = 0;
  std::uint64_t bytes = 0;
  RangeKind kind = RangeKind::kDriver;
  Access access;    ///< kVmm only
  int ordinal = 0;  ///< of the device that the memory is on; CU_DEVICE_CPU: on the host
  Context* context = nullptr;
  CUmemoryPool pool = nullptr;
  std::uint64_t id = 0;
  unsigned host_flags = 0;
  bool sync_memops = false;
  CUmemAllocationHandleType handle_types = CU_MEM_HANDLE_TYPE_NONE;

  bool on_host() const {
    return kind == RangeKind::kHost || kind == RangeKind::kHostForeign ||
           (kind == RangeKind::kVmm && ordinal == CU_DEVICE_CPU);
  }
  /// PROT_* as far as copies may: what any device or the CPU may.
  int protection() const { return kind == RangeKind::kVmm ? access.widest() : kReadWrite; }
};

struct Range : RangeInfo {
  std::shared_ptr<Physical> physical;  ///< null for host and managed memory
};

constexpr unsigned bit(RangeKind kind) { return 1U << static_cast<unsigned>(kind); }

}  // namespace gcr::softgpu
