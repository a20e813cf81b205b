// A receiver's regions, with the keys with which senders may write to them.
//
// The sender's device writes into the landing window directly, so each lane has a part of its own.
// The lane's sender chooses the places in it, and may reuse one only when the receiver has
// acknowledged its content. A sender that violates this corrupts only its own data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "src/base/unique_fd.h"
#include "transport/landing_window.h"
#include "transport/rdma/messages.h"
#include "transport/rdma/verbs.h"
#include "transport/region_table.h"

namespace gcr::transport::rdma {

/// The part of the landing window that one lane uses. Thread-safe. Claimed places keep it alive.
class WindowPart : public std::enable_shared_from_this<WindowPart> {
 public:
  /// Calls wake_up(*wake) when a place is released.
  WindowPart(std::span<std::byte> bytes, std::shared_ptr<const UniqueFd> wake);

  std::span<std::byte> bytes() const { return bytes_; }
  std::uint16_t places() const { return static_cast<std::uint16_t>(taken_.size()); }

  /// Claims place `number`, into which the sender says it has written. Fails with kProtocol if
  /// there is no such place, it is still claimed, or `length_bytes` do not fit.
  Result<Place> claim(std::uint64_t number, std::uint64_t length_bytes, std::uint64_t request);

  /// Returns up to `most` requests whose places were released, each once.
  std::vector<std::uint64_t> take_released(std::size_t most);

 private:
  void release(std::size_t number, std::uint64_t request);

  const std::span<std::byte> bytes_;
  const std::shared_ptr<const UniqueFd> wake_;
  std::mutex mutex_;
  std::vector<bool> taken_;
  std::vector<std::uint64_t> released_;  ///< requests
};

/// The regions of a receiver, registered with its devices. Thread-safe.
class Regions {
 public:
  /// Protection domains of the devices that may write; complete before the first region is added.
  Domains domains;

  Status add(RegionId region, std::span<std::byte> bytes);
  /// Registers the landing window and cuts it into parts for `lanes` lanes, each with at least one
  /// place. Call once, before the first region without memory of its own.
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

  std::shared_ptr<WindowPart> claim_part(std::shared_ptr<const UniqueFd> wake);

  RegionTable table_;
  std::mutex mutex_;  ///< guards everything below
  std::map<RegionId, Region> regions_;
  std::span<std::byte> window_;
  std::vector<MemoryRegion> window_registered_;
  std::size_t part_bytes_ = 0;
  std::vector<std::weak_ptr<WindowPart>> parts_;
};

}  // namespace gcr::transport::rdma
