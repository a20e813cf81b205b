// A receiver's regions, with the keys with which senders may write to them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/rdma/messages.h"
#include "transport/rdma/verbs.h"
#include "transport/rdma/window_parts.h"
#include "transport/region_table.h"

namespace gcr::transport::rdma {

/// The regions of a receiver, registered with its devices. Thread-safe.
class Regions {
 public:
  /// Protection domains of the devices that may write; complete before the first region is added.
  Domains domains;

  Status add(RegionId region, std::span<std::byte> bytes);
  /// Registers the landing window, for at most `lanes` lanes. Call once, before the first region
  /// without memory of its own.
  Status open_window(std::span<std::byte> bytes, unsigned lanes);
  Status add_windowed(RegionId region, std::uint64_t size_bytes);
  /// Removes the region; returns once no device writes to it and no pin is left.
  Status remove(RegionId region);

  /// Answers a sender's kRegionQuery on a lane of `domain`. Assigns a part of the window to the
  /// lane if the region needs one and the lane has none.
  Result<Message> key_for(const Message& question, const ibv_pd* domain,
                          const std::shared_ptr<const UniqueFd>& wake,
                          std::shared_ptr<WindowPart>& part);

  Result<RegionTable::Pin> pin(RegionId region, std::uint64_t offset, std::uint64_t length_bytes) {
    return table_.pin(region, offset, length_bytes);
  }

 private:
  /// A region's registrations with the devices; none if its bytes land in the window.
  struct Region {
    std::uint64_t size_bytes = 0;
    std::vector<MemoryRegion> registered;
  };

  std::mutex mutex_;
  std::map<RegionId, Region> regions_;  ///< guarded by mutex_
  std::vector<MemoryRegion> window_;    ///< its registrations; guarded by mutex_
  WindowParts parts_;
  RegionTable table_;
};

}  // namespace gcr::transport::rdma
