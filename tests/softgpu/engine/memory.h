// The memory of the software GPU: physical allocations (files in a device's store, or memfds for
// those on the host), the address ranges where they are mapped, and host memory that the driver
// knows. A process that gets a descriptor of such a file shares the memory, in each namespace.
//
// Device addresses are addresses of the process, so kernels and copies are ordinary code; the table
// of ranges defines the accessible ones. Mappings are not inherited by forked children, as with a
// real GPU.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <shared_mutex>
#include <span>
#include <unordered_map>

#include "src/base/unique_fd.h"
#include "tests/softgpu/engine/device.h"
#include "tests/softgpu/engine/ranges.h"

namespace gcr::softgpu {

class Memory {
 public:
  explicit Memory(DeviceTable* devices) : devices_(devices) {}

  /// VRAM of the driver itself at an address that stays the same for its lifetime.
  Result allocate(int ordinal, std::uint64_t bytes, Context* context, RangeKind kind,
                  const void* pool, std::uintptr_t* address);
  /// Host memory, pinned or managed. NVIDIA's pinned memory is shared and anonymous, and copies
  /// write to it as a device does: through a separate mapping, without the program's page tables.
  Result allocate_host(std::uint64_t bytes, Context* context, RangeKind kind, unsigned flags,
                       std::uintptr_t* address);
  Result register_host(std::uintptr_t address, std::uint64_t bytes, Context* context,
                       unsigned flags);
  /// Frees the range that starts exactly there, if it is of one of the kinds (bits by RangeKind).
  Result free(std::uintptr_t address, unsigned kinds);
  /// Frees all memory of a context that ends.
  void free_all_of(const Context* context);

  // Virtual memory management, with the real driver's rules.
  Result reserve(std::uint64_t bytes, std::uint64_t alignment, std::uintptr_t hint,
                 std::uintptr_t* address);
  Result unreserve(std::uintptr_t address, std::uint64_t bytes);
  Result create(std::uint64_t bytes, const AllocationProperties& properties, MemoryHandle* handle);
  Result import(int file, MemoryHandle* handle);
  Result export_file(MemoryHandle handle, int* file);
  Result retain(std::uintptr_t address, MemoryHandle* handle);
  Result release(MemoryHandle handle);
  Result properties(MemoryHandle handle, AllocationProperties* properties);
  Result map(std::uintptr_t address, std::uint64_t bytes, std::uint64_t offset,
             MemoryHandle handle);
  Result unmap(std::uintptr_t address, std::uint64_t bytes);
  /// Changes the access of the given locations, and of no other.
  Result set_access(std::uintptr_t address, std::uint64_t bytes,
                    std::span<const AccessGrant> accesses);

  // Legacy IPC. A handle that is opened again in the same context returns the same address, and has
  // to be closed as often.
  Result ipc_handle(std::uintptr_t address, std::span<char, kIpcHandleBytes> handle);
  Result ipc_open(std::span<const char, kIpcHandleBytes> handle, Context* context,
                  std::uintptr_t* address);
  Result ipc_close(std::uintptr_t address);

  Result set_sync_memops(std::uintptr_t address, bool value);

  /// The address through which copies write to this address.
  std::uintptr_t as_devices_see(std::uintptr_t address) const;

  /// The range that holds this address; an empty one (bytes 0) if none does.
  RangeInfo find(std::uintptr_t address) const;
  std::uint64_t bytes_of_pool(const void* pool) const;
  std::uint64_t bytes_of_graphs(int ordinal) const;
  /// Whether every byte is in ranges that allow copies this protection.
  bool accessible(std::uintptr_t address, std::uint64_t bytes, int protection) const;
  /// Whether kernels in that context may access every byte in this way: memory of another device is
  /// inaccessible unless set_access() or peer access allows it.
  bool accessible_to_kernels(const Context& context, std::uintptr_t address, std::uint64_t bytes,
                             int protection) const;

  // Checkpoint. Called by the serving thread while the gate is closed; restore uses no heap.
  /// Why this process cannot be checkpointed now, or Result::kSuccess.
  Result checkpointable() const;
  /// In a forked child: drops what belongs to the parent.
  void forget_files();
  /// Moves all VRAM into host memory; failure leaves everything unchanged.
  Result park();
  /// Moves it back, into the devices as they are in the table now; on failure still parked. Fails
  /// permanently if any memory was shared with other processes when it was parked.
  Result unpark();

  /// A pool of another process has been imported.
  std::atomic<bool> has_imported_pool = false;

 private:
  struct Handle {
    std::shared_ptr<Physical> physical;
    int references = 1;
  };
  using Ranges = std::map<std::uintptr_t, Range>;

  // All of these with the lock held. A Physical is destroyed with the lock held, too.
  std::shared_ptr<Physical> make_physical(int ordinal, std::uint64_t bytes);
  Result create_file(int ordinal, std::uint64_t bytes, UniqueFd* file);
  void account_as_freed(const Physical& physical);
  Range& add_range(std::uintptr_t start, std::uint64_t bytes, RangeKind kind, Context* context);
  void drop_range(Ranges::iterator range);
  MemoryHandle add_handle(std::shared_ptr<Physical> physical);
  std::shared_ptr<Physical> physical_of(MemoryHandle handle) const;
  const Range* at(std::uintptr_t address) const;
  bool overlaps(std::uintptr_t address, std::uint64_t bytes) const;
  bool reserved(std::uintptr_t address, std::uint64_t bytes) const;
  bool whole_ranges(std::uintptr_t address, std::uint64_t bytes) const;
  Result check_access(std::uintptr_t address, std::uint64_t bytes, const AccessGrant& access) const;
  template <class Allows>
  bool all_allow(std::uintptr_t address, std::uint64_t bytes, const Allows& allows) const;
  Result loss() const;
  bool prepare_host_copies();
  void park_one(Physical* physical);
  bool create_files();
  void unpark_one(Physical* physical);

  DeviceTable* devices_;
  mutable std::shared_mutex mutex_;
  Ranges ranges_;
  std::map<std::uintptr_t, std::uint64_t> reservations_;
  std::unordered_map<MemoryHandle, Handle> handles_;
  std::set<Physical*> physicals_;
  /// the result of every restore of the memory that is parked now
  Result lost_ = Result::kSuccess;
  std::uint64_t next_id_ = 1;
};

}  // namespace gcr::softgpu
