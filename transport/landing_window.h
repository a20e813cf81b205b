// Memory through which bytes pass on their way to where they belong: regions without memory of
// their own share it. It is cut into places; a piece of a write lands in one of them, which the
// receiver's owner gives back when it has moved the bytes on. However large the regions are, the
// window need not be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "src/base/result.h"
#include "src/base/units.h"

namespace gcr::transport {

using RegionId = std::uint32_t;

/// The most that lands at once, and what each place of a window has room for.
inline constexpr std::uint64_t kPlaceBytes = kChunkBytes;

/// The right to one place of a window, as long as what landed there. Gives the place back when it
/// is destroyed, on any thread, also after the receiver's end. Move-only.
class Place {
 public:
  Place(std::span<std::byte> bytes, std::function<void()> give_back)
      : bytes_(bytes), give_back_(std::move(give_back)) {}
  Place(Place&& other) noexcept
      : bytes_(other.bytes_), give_back_(std::exchange(other.give_back_, nullptr)) {}
  Place& operator=(Place&&) = delete;
  ~Place() {
    if (give_back_) give_back_();
  }

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
  std::function<void()> give_back_;
};

/// Called on the receiver's lane threads with bytes for `offset` of `region`, which lie in `place`.
/// Otherwise as OnLanded. Must not wait for other places.
using OnArrived = std::function<Status(RegionId region, std::uint64_t offset, Place place)>;

struct LandingWindow {
  std::span<std::byte> bytes;  ///< places; mapped until the last place was given back
  OnArrived on_arrived;

  std::size_t places() const { return bytes.size() / kPlaceBytes; }

  /// kInvalidArgument if it has not one place for each of so many lanes.
  Status check(unsigned lanes) const;
};

}  // namespace gcr::transport
