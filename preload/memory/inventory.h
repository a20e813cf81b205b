// The inventory of the process's GPU memory.
//
// It has three layers: physical allocations, which have ids and are what a detach releases and an
// attach replaces; mappings, the address ranges at which they are mapped; and plain allocations,
// the application's allocations inside the library's mappings. Addresses and ids never change;
// handles of the driver do. Plain data, guarded by Runtime::mutex; nothing here calls the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <vector>

#include "preload/memory/types.h"

namespace gcr::preload {

struct Pool;

enum class Origin : std::uint8_t {
  kInvalid = 0,
  kLibrary,      ///< created by the library for plain allocations
  kApplication,  ///< created by the application itself
  kImported,     ///< imported by the application from a descriptor, or by legacy IPC
};

/// One physical allocation. Lives in Inventory::physicals, whose nodes never move.
struct Physical {
  std::uint64_t id = 0;
  Handle handle = 0;           ///< the driver's own; 0 while detached
  std::size_t size_bytes = 0;  ///< 0: imported and not mapped yet; only a mapping tells the size
  int device = 0;              ///< for host memory, the device for which it was first created
  int host_node = -1;          ///< in host memory, of this NUMA node; -1: on the device
  Origin origin = Origin::kInvalid;
  Asked asked{};                 ///< the properties that the application requested
  std::uint32_t references = 0;  ///< handles that the application holds
  std::uint32_t mappings = 0;    ///< entries of Inventory::mappings
  bool foreign = false;          ///< reachable in ways that a detach cannot undo
  bool shared = false;           ///< imported, or exported by the application for others
  int retained_fd = -1;          ///< kept if shared, and after an attach, because imported handles
                                 ///< cannot be exported; exports are duplicates of it
  int offered_fd = -1;           ///< from kOffer, for the next attach
  std::uint64_t export_session = 0;  ///< session of the agent that holds a descriptor of it
};

/// Closes every descriptor of `physical`.
void close_descriptors(Physical& physical);

/// One allocation of the application, by cuMemAlloc and the like, in a stream's order, or by
/// opening an IPC handle. It is a part of a mapping, or the whole of it.
struct Plain {
  Address address = 0;
  std::size_t requested_bytes = 0;
  unsigned long long buffer_id = 0;  ///< never reused, and different from the driver's ids
  std::uint32_t ipc_opens = 0;       ///< opens minus closes of its IPC handle
  bool sync_memops = false;          ///< the value that the application set
};

/// A plain allocation whose IPC handle was exported. A process that opens the handle reads this
/// record from the exporter's memory (preload/memory/ipc.h), so its address is fixed while the
/// allocation lives.
struct IpcRecord {
  std::uint64_t exporter = 0;       ///< random number of the process; 0: the allocation was freed
  std::uint64_t buffer_id = 0;      ///< of the allocation
  const int* descriptor = nullptr;  ///< points to Physical::retained_fd, which a migration changes
  std::uint64_t physical_id = 0;
  std::uint64_t size_bytes = 0;    ///< of the physical allocation
  std::uint64_t offset_bytes = 0;  ///< of the plain allocation in the physical one
  std::uint64_t requested_bytes = 0;

  bool operator==(const IpcRecord&) const = default;
};

/// The reserved addresses of a dissolved arena, which its mappings share.
struct Reservation {
  Address address = 0;
  std::size_t size_bytes = 0;
  std::size_t mappings = 0;  ///< remaining mappings; the last one frees the addresses
};

/// One mapped range. Bit N of the masks is device N.
struct Mapping {
  Address address = 0;
  std::size_t size_bytes = 0;
  std::size_t offset_bytes = 0;  ///< into the physical allocation
  Physical* physical = nullptr;
  std::uint64_t readers = 0;           ///< devices that may read
  std::uint64_t writers = 0;           ///< devices that may read and write
  std::vector<Access> other_access;    ///< access of locations that are no device
  Context* context = nullptr;          ///< owner of the plain allocations in it; null for a pool
  Reservation* reservation = nullptr;  ///< null: its addresses are reserved for it alone
  Pool* pool = nullptr;                ///< pool of the plain allocations in it; null for a context
  std::uint64_t ipc_key[2] = {};  ///< for opened handles: exporter, and physical id in the exporter

  /// Whether it holds plain allocations; else it is the application's own mapping.
  bool holds_plains() const { return context != nullptr || pool != nullptr; }
};

class Inventory {
 public:
  /// Creates the inventory of runtime number `runtime`, which is in the high bits of its ids, so
  /// that ids are unique in the process.
  explicit Inventory(unsigned runtime) : next_id_((std::uint64_t{runtime} << kIdBits) + 1) {}

  /// The number of the runtime whose inventory assigned `id`.
  static std::uint64_t runtime_of(std::uint64_t id) { return id >> kIdBits; }

  /// Adds a physical allocation with a new id.
  Physical& add_physical(Handle handle, std::size_t size_bytes, int device, Origin origin);
  /// Removes a physical allocation without references and mappings. The caller closes its
  /// descriptors.
  void remove_physical(Physical& physical);
  Physical* find_physical(std::uint64_t id);
  void set_size(Physical& physical, std::size_t size_bytes);

  /// The value that the application gets instead of the driver's handle.
  static Handle to_handle(const Physical& physical);
  Physical* from_handle(Handle handle);
  /// Whether the value came from to_handle(), even if the allocation was removed since.
  static bool is_our_handle(Handle handle);

  Mapping& add_mapping(Address address, std::size_t size_bytes, std::size_t offset_bytes,
                       Physical& physical);
  /// Removes the mapping at `address` and decrements its physical allocation's count of mappings.
  Mapping remove_mapping(Address address);
  /// The mapping that contains `address`, or null.
  Mapping* find_mapping(Address address);

  /// The gap [begin, end) between mappings around `address`, which is in no mapping.
  void gap_around(Address address, Address* begin, Address* end) const;

  /// Adds a plain allocation in one of the library's mappings. The shims check the bounds of
  /// allocations from add_plain(), not of those from add_pooled().
  Plain& add_plain(Address address, std::size_t requested_bytes);
  Plain& add_pooled(Address address, std::size_t requested_bytes);
  void remove_plain(Address address);
  void remove_pooled(Address address);
  /// The IPC record of the plain allocation at `address`; creates an empty one the first time.
  IpcRecord& ipc_record(Address address) { return ipc_records_[address]; }
  bool has_ipc_records() const { return !ipc_records_.empty(); }
  /// The plain allocation that contains `address` within its requested size, or null.
  Plain* find_plain(Address address);
  /// Whether `mapping` has plain allocations, and the removal of all of them.
  bool has_plains(const Mapping& mapping) const;
  void remove_plains(const Mapping& mapping);
  /// Calls `function` for each plain allocation in `mapping`.
  template <class Function>
  void for_each_plain(const Mapping& mapping, Function function) const {
    for (auto next = plains_.lower_bound(mapping.address);
         next != plains_.end() && next->first - mapping.address < mapping.size_bytes; ++next) {
      function(next->second);
    }
  }

  std::map<Address, Mapping>& mappings() { return mappings_; }
  std::map<std::uint64_t, Physical>& physicals() { return physicals_; }
  std::uint64_t generation() const { return generation_; }
  std::uint64_t tracked_bytes() const { return tracked_bytes_; }
  std::uint32_t tracked_count() const { return tracked_count_; }

  /// Records a live allocation that the driver made itself.
  void add_untracked(Address address, std::size_t size_bytes, bool managed);
  void remove_untracked(Address address);
  std::uint64_t untracked_bytes() const { return untracked_bytes_; }
  std::uint32_t managed_count() const { return managed_count_; }

 private:
  static constexpr int kIdBits = 39;

  /// Removes the IPC records of allocations in [first, end); their handles can no longer be opened.
  void remove_ipc_records(Address first, Address end);

  struct Untracked {
    std::size_t size_bytes;
    bool managed;
  };

  std::map<std::uint64_t, Physical> physicals_;
  std::map<Address, Mapping> mappings_;
  std::pmr::unsynchronized_pool_resource plain_nodes_;  ///< reuses the nodes of plains_
  std::pmr::map<Address, Plain> plains_{&plain_nodes_};
  std::map<Address, IpcRecord> ipc_records_;
  std::map<Address, Untracked> untracked_;
  std::uint64_t next_id_;
  std::uint64_t next_buffer_id_ = std::uint64_t{1} << 62;  ///< the driver's ids are small
  std::uint64_t generation_ = 1;
  std::uint64_t tracked_bytes_ = 0;
  std::uint64_t untracked_bytes_ = 0;
  std::uint32_t tracked_count_ = 0;
  std::uint32_t managed_count_ = 0;
};

}  // namespace gcr::preload
