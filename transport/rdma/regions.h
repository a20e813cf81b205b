// A receiver's regions, with the keys under which its devices let senders write.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/rdma/messages.h"
#include "transport/rdma/verbs.h"
#include "transport/region_table.h"

namespace gcr::transport::rdma {

/// Thread-safe, but for add_device. Each device has a protection domain of its own.
class Regions {
 public:
  /// Before the first region; gives the protection domain, the same for the same device.
  Result<ibv_pd*> add_device(ibv_context* device);
  /// That of a device which was added, else null.
  ibv_pd* domain_of(const ibv_context* device) const;

  Status add(RegionId region, std::span<std::byte> bytes);
  Status add_dmabuf(RegionId region, const DmaBuf& memory);
  /// Returns once no device writes to it and no pin is left.
  Status remove(RegionId region);

  /// The answer to a sender's question on a lane of `domain`.
  Result<Message> key_for(const Message& question, const ibv_pd* domain) const;

  Result<RegionTable::Pin> pin(RegionId region, std::uint64_t offset, std::uint64_t length_bytes) {
    return table_.pin(region, offset, length_bytes);
  }

 private:
  using Registrations = std::vector<MemoryRegion>;  ///< one per domain

  template <class Register>
  Status add_registered(RegionId region, std::span<std::byte> bytes, Register how);

  std::vector<ProtectionDomain> domains_;
  mutable std::mutex mutex_;
  std::map<RegionId, Registrations> registered_;  ///< guarded by mutex_; destroyed first
  RegionTable table_;
};

}  // namespace gcr::transport::rdma
