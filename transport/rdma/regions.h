// A receiver's regions, with the keys under which its devices let senders write.
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

/// Thread-safe.
class Regions {
 public:
  /// Of the devices that may write; complete before the first region is added.
  Domains domains;

  Status add(RegionId region, const DmaBuf& memory);
  /// Once, before the first region without memory of its own. For so many lanes.
  Status open_window(std::span<std::byte> bytes, unsigned lanes);
  Status add_windowed(RegionId region, std::uint64_t size_bytes);
  /// Returns once no device writes to it and no pin is left.
  Status remove(RegionId region);

  /// The answer to a sender's question on a lane of `domain`, which gets its part of the window, if
  /// it has none and needs one.
  Result<Message> key_for(const Message& question, const ibv_pd* domain,
                          const std::shared_ptr<const UniqueFd>& wake,
                          std::shared_ptr<WindowPart>& part);

  Result<RegionTable::Pin> pin(RegionId region, std::uint64_t offset, std::uint64_t length_bytes) {
    return table_.pin(region, offset, length_bytes);
  }

 private:
  /// Its registrations with the devices; none if its bytes land in the window.
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
