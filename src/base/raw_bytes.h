// Uninitialised memory, to be filled by a read or a receive.
#pragma once

#include <cstddef>
#include <memory>

namespace gcr {

/// A fixed number of uninitialised bytes: pages that are never written take no memory and need no
/// clearing. A range, so it converts to std::span. A moved-from object may only be assigned to or
/// destroyed.
class RawBytes {
 public:
  explicit RawBytes(std::size_t size)
      : bytes_(std::make_unique_for_overwrite<std::byte[]>(size)), size_(size) {}

  std::size_t size() const { return size_; }
  std::byte* data() { return bytes_.get(); }
  std::byte* begin() { return data(); }
  std::byte* end() { return data() + size_; }
  const std::byte* data() const { return bytes_.get(); }
  const std::byte* begin() const { return data(); }
  const std::byte* end() const { return data() + size_; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_;
};

}  // namespace gcr
