// Owners of operating system resources: descriptors and mappings.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <utility>

namespace gcr {

/// Owns one file descriptor and closes it once. Move-only; -1 means none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

/// Owns one mmap'ed range and unmaps it once. Move-only; empty means none.
class UniqueMapping {
 public:
  UniqueMapping() = default;
  UniqueMapping(void* address, std::size_t size_bytes)
      : bytes_(static_cast<std::byte*>(address), size_bytes) {}
  UniqueMapping(UniqueMapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  UniqueMapping& operator=(UniqueMapping&& other) noexcept {
    if (this != &other) {
      reset();
      bytes_ = std::exchange(other.bytes_, {});
    }
    return *this;
  }
  ~UniqueMapping() { reset(); }

  std::span<std::byte> bytes() const { return bytes_; }
  explicit operator bool() const { return !bytes_.empty(); }
  void reset() {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
    bytes_ = {};
  }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace gcr
