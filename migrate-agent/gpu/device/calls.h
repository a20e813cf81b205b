// The calls of a driver's library on one GPU. Each vendor implements these alone (mostly
// in common_calls.h); the objects of device.h are built on them.
//
// A thread calls enter() before any other call. Addresses and handles are the driver's own numbers,
// and an error is the driver's. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "migrate-agent/gpu/device/device.h"

namespace gcr::device {

class Calls {
 public:
  using Handle = std::uint64_t;
  using StreamHandle = void*;

  virtual ~Calls() = default;
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  /// Makes this GPU the current one of the calling thread.
  virtual Status enter() const = 0;

  virtual Result<std::uint64_t> free_bytes() const = 0;
  virtual Result<unsigned> processors() const = 0;

  // Physical memory that a descriptor can own, in VRAM or on a NUMA node of the host.
  virtual Result<Handle> create_memory(std::uint64_t bytes,
                                       std::optional<std::uint32_t> host_node) const = 0;
  virtual Result<UniqueFd> export_memory(Handle handle) const = 0;
  virtual Result<Handle> import_memory(int descriptor) const = 0;
  virtual void release_memory(Handle handle) const = 0;
  virtual Result<Address> reserve(std::uint64_t bytes) const = 0;
  virtual void free_addresses(Address address, std::uint64_t bytes) const = 0;
  virtual Status map(Address address, std::uint64_t bytes, Handle handle) const = 0;
  virtual void unmap(Address address, std::uint64_t bytes) const = 0;
  /// Lets this GPU read and write the range.
  virtual Status allow_access(Address address, std::uint64_t bytes) const = 0;

  // VRAM, and page-locked memory of the host.
  virtual Result<Address> allocate(std::uint64_t bytes) const = 0;
  virtual void free(Address address) const = 0;
  virtual Result<std::byte*> allocate_host(std::uint64_t bytes) const = 0;
  virtual void free_host(std::byte* address) const = 0;
  virtual Status page_lock(std::span<std::byte> bytes) const = 0;
  virtual void unlock_pages(std::byte* address) const = 0;
  /// The address on the GPUs of page-locked memory.
  virtual Result<Address> address_of(std::byte* host) const = 0;

  virtual Result<StreamHandle> make_stream() const = 0;
  virtual void destroy_stream(StreamHandle stream) const = 0;
  virtual Status copy_within(Address to, Address from, std::uint64_t bytes,
                             StreamHandle stream) const = 0;
  virtual Status copy_out(std::byte* to, Address from, std::uint64_t bytes,
                          StreamHandle stream) const = 0;
  virtual Status copy_in(Address to, const std::byte* from, std::uint64_t bytes,
                         StreamHandle stream) const = 0;
  /// Returns when the copy is complete.
  virtual Status copy_in_now(Address to, std::span<const std::byte> from) const = 0;
  virtual Status fill(Address to, std::byte value, std::uint64_t bytes,
                      StreamHandle stream) const = 0;
  virtual Status synchronize(StreamHandle stream) const = 0;

  /// Valid until unload().
  virtual Result<Kernel> load_digest_kernel() const = 0;
  virtual void unload(const Kernel& kernel) const = 0;
  /// Copies the arguments, which `arguments` points to, before it returns.
  virtual Status launch(const Kernel& kernel, unsigned blocks, unsigned threads,
                        std::span<void*> arguments, StreamHandle stream) const = 0;

 protected:
  Calls() = default;
};

/// The result of one call; an error is preceded by what was being done.
template <class Any>
Any in_context(Any result, std::string_view doing) {
  if (result) return result;
  return result.error().while_doing(doing);
}

}  // namespace gcr::device
