// The inventory of the process's GPU memory: physical allocations, where they are mapped, and the
// plain allocations of the application inside the library's mappings. Plain data, guarded by
// Runtime::mutex; nothing here calls the driver.
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
  kLibrary,      ///< made by the library for plain allocations
  kApplication,  ///< made by the application itself
  kImported,     ///< by the application's import of a descriptor, or by legacy IPC
};

/// One physical allocation. Lives in Inventory::physicals, whose nodes never move.
struct Physical {
  std::uint64_t id = 0;
  Handle handle = 0;           ///< the driver's own; 0 while detached
  std::size_t size_bytes = 0;  ///< 0: imported, and never mapped: only a mapping tells its size
  int device = 0;              ///< for host memory, one that had it first
  int host_node = -1;          ///< in host memory, of this NUMA node; -1: on the device
  Origin origin = Origin::kInvalid;
  Asked asked{};                     ///< as the application asked for it
  std::uint32_t references = 0;      ///< handles that the application holds
  std::uint32_t mappings = 0;        ///< entries of Inventory::mappings
  bool foreign = false;              ///< reachable in ways that a detach cannot undo
  bool shared = false;               ///< imported, or given to the application for others
  int retained_fd = -1;              ///< of what is shared, or after an attach: imported handles
                                     ///< cannot be exported. All that leave are duplicates of it.
  int offered_fd = -1;               ///< from kOffer, for the next attach
  std::uint64_t export_session = 0;  ///< the agent that holds a descriptor of it
};

/// Closes every descriptor of `physical`.
void close_descriptors(Physical& physical);

/// What the application got from a plain allocation, in a stream's order or not, or by opening an
/// IPC handle: a part of a mapping, or the whole of it.
struct Plain {
  Address address = 0;
  std::size_t requested_bytes = 0;
  unsigned long long buffer_id = 0;  ///< never used twice, and none of the driver's
  std::uint32_t ipc_opens = 0;       ///< its IPC handle was opened, less closed
  bool sync_memops = false;          ///< as the application set it
};

/// A plain allocation whose IPC handle was given out, as whoever opens the handle reads it in the
/// exporter's memory (preload/memory/ipc.h). It stays where it is as long as the allocation lives.
struct IpcRecord {
  std::uint64_t exporter = 0;       ///< random, of the process; 0: the allocation is gone
  std::uint64_t buffer_id = 0;      ///< of the allocation
  const int* descriptor = nullptr;  ///< Physical::retained_fd: another number after a move
  std::uint64_t physical_id = 0;
  std::uint64_t size_bytes = 0;    ///< of the physical allocation
  std::uint64_t offset_bytes = 0;  ///< of the plain one in it
  std::uint64_t requested_bytes = 0;

  bool operator==(const IpcRecord&) const = default;
};

/// Addresses of a dissolved arena, which the mappings in it have from the driver together.
struct Reservation {
  Address address = 0;
  std::size_t size_bytes = 0;
  std::size_t mappings = 0;  ///< the last one gives the addresses back
};

/// One mapped range. Device ordinals are bits of the masks.
struct Mapping {
  Address address = 0;
  std::size_t size_bytes = 0;
  std::size_t offset_bytes = 0;  ///< into the physical allocation
  Physical* physical = nullptr;
  std::uint64_t readers = 0;           ///< devices that may read
  std::uint64_t writers = 0;           ///< devices that may read and write
  std::vector<Access> other_access;    ///< locations that are no device
  Context* context = nullptr;          ///< of the plain allocations in it, if they have one
  Reservation* reservation = nullptr;  ///< null: its addresses are its own
  Pool* pool = nullptr;           ///< that the plain allocations in it are of, if they are of one
  std::uint64_t ipc_key[2] = {};  ///< of opened handles: the exporter, and the physical id there

  /// Plain allocations lie in it; else it is the application's own.
  bool is_of_plains() const { return context != nullptr || pool != nullptr; }
};

class Inventory {
 public:
  /// Of the runtime of that number, which is in the high bits of ids: they are different in all
  /// inventories of a process.
  explicit Inventory(unsigned runtime) : next_id_((std::uint64_t{runtime} << kIdBits) + 1) {}

  /// The runtime whose inventory gave an id.
  static std::uint64_t runtime_of(std::uint64_t id) { return id >> kIdBits; }

  /// A new physical allocation with an id of its own.
  Physical& add_physical(Handle handle, std::size_t size_bytes, int device, Origin origin);
  /// Removes one without references and mappings. The caller closes its descriptors.
  void remove_physical(Physical& physical);
  Physical* find_physical(std::uint64_t id);
  void set_size(Physical& physical, std::size_t size_bytes);

  /// Values that the application holds instead of the driver's handles.
  static Handle to_handle(const Physical& physical);
  Physical* from_handle(Handle handle);
  /// Whether the value came from to_handle, even if the allocation is gone.
  static bool is_our_handle(Handle handle);

  Mapping& add_mapping(Address address, std::size_t size_bytes, std::size_t offset_bytes,
                       Physical& physical);
  /// Removes the mapping; its physical allocation loses one mapping.
  Mapping take_mapping(Address address);
  /// The mapping that contains `address`, or null.
  Mapping* find_mapping(Address address);

  /// The addresses around one that is in no mapping, up to the next ones: [begin, end).
  void gap_around(Address address, Address* begin, Address* end) const;

  /// A plain allocation in a mapping of the library's; its bounds are known from now on. Those of a
  /// pool's memory are the driver's to look at.
  Plain& add_plain(Address address, std::size_t requested_bytes);
  Plain& add_pooled(Address address, std::size_t requested_bytes);
  void remove_plain(Address address);
  void remove_pooled(Address address);
  /// The record of the plain allocation at `address`, which is new and empty the first time.
  IpcRecord& ipc_record(Address address) { return ipc_records_[address]; }
  bool has_ipc_records() const { return !ipc_records_.empty(); }
  /// The plain allocation that contains `address` within the size that was asked for, or null.
  Plain* find_plain(Address address);
  /// Those in `mapping`: whether there are any, and their removal.
  bool has_plains(const Mapping& mapping) const;
  void remove_plains(const Mapping& mapping);
  /// Calls `function` for each of them.
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

  /// Live allocations left with the driver, by address.
  void add_untracked(Address address, std::size_t size_bytes, bool managed);
  void remove_untracked(Address address);
  std::uint64_t untracked_bytes() const { return untracked_bytes_; }
  std::uint32_t managed_count() const { return managed_count_; }

 private:
  static constexpr int kIdBits = 39;

  /// Those of addresses from `first` to before `end`. Nobody can open their handles any more.
  void remove_ipc_records(Address first, Address end);

  struct Untracked {
    std::size_t size_bytes;
    bool managed;
  };

  std::map<std::uint64_t, Physical> physicals_;
  std::map<Address, Mapping> mappings_;
  std::pmr::unsynchronized_pool_resource plain_nodes_;  ///< recycled
  std::pmr::map<Address, Plain> plains_{&plain_nodes_};
  std::map<Address, IpcRecord> ipc_records_;
  std::map<Address, Untracked> untracked_;
  std::uint64_t next_id_;
  std::uint64_t next_buffer_id_ = std::uint64_t{1} << 62;  ///< the driver's are small
  std::uint64_t generation_ = 1;
  std::uint64_t tracked_bytes_ = 0;
  std::uint64_t untracked_bytes_ = 0;
  std::uint32_t tracked_count_ = 0;
  std::uint32_t managed_count_ = 0;
};

}  // namespace gcr::preload
