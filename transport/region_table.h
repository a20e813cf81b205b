// The receiver's regions, and a pin for each write into one of them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "src/base/result.h"
#include "transport/channel.h"

namespace gcr::transport {

/// The regions by number. Thread-safe. Must outlive every Pin that it returned.
class RegionTable {
 public:
  /// A right to write into `bytes()`; the region stays registered while it lives. Move-only.
  class Pin {
   public:
    Pin(Pin&& other) noexcept
        : table_(std::exchange(other.table_, nullptr)),
          region_(other.region_),
          bytes_(other.bytes_),
          windowed_(other.windowed_) {}
    Pin& operator=(Pin&&) = delete;
    ~Pin() {
      if (table_ != nullptr) table_->unpin(region_);
    }
    /// Empty if the bytes land in the window.
    std::span<std::byte> bytes() const { return bytes_; }
    bool windowed() const { return windowed_; }

   private:
    friend class RegionTable;
    Pin(RegionTable* table, RegionId region, std::span<std::byte> bytes, bool windowed)
        : table_(table), region_(region), bytes_(bytes), windowed_(windowed) {}

    RegionTable* table_;
    RegionId region_;
    std::span<std::byte> bytes_;
    bool windowed_;
  };

  /// Fails with kInvalidArgument if `region` exists, or is being removed.
  Status add(RegionId region, std::span<std::byte> bytes);

  /// Adds a region without memory of its own. Fails as add().
  Status add_windowed(RegionId region, std::uint64_t size_bytes);

  /// Refuses further pins of the region, and returns when none is left. Fails with kNotFound.
  Status remove(RegionId region);

  /// Pins the region for a write of `length_bytes` at `offset`. Fails with kNotFound if there is no
  /// such region, and with kInvalidArgument if the range is not within it. All arguments may come
  /// from the peer unchecked.
  Result<Pin> pin(RegionId region, std::uint64_t offset, std::uint64_t length_bytes);

 private:
  struct Entry {
    std::uint64_t size_bytes = 0;
    std::byte* memory = nullptr;  ///< null if `windowed`
    bool windowed = false;
    unsigned pins = 0;
    bool removed = false;
  };

  Status add(RegionId region, Entry entry);

  void unpin(RegionId region);

  std::mutex mutex_;
  std::condition_variable unpinned_;
  std::map<RegionId, Entry> entries_;
};

}  // namespace gcr::transport
