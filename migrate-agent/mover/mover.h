// The two halves of the mover: what leaves the source's VRAM, and what fills the destination's.
// Neither touches the application's process. Methods block; one thread at a time unless said
// otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "migrate-agent/digest/digest.h"
#include "migrate-agent/landing/landing_region.h"
#include "migrate-agent/mover/vram.h"
#include "transport/channel.h"

namespace gcr::mover {

/// The contexts of one mover, made when a GPU is first used.
class Contexts {
 public:
  explicit Contexts(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {}
  /// kNotFound if this machine has no such GPU.
  Result<std::shared_ptr<GpuContext>> on(const Uuid& gpu);
  const CudaDriver& driver() const { return *driver_; }

 private:
  std::shared_ptr<const CudaDriver> driver_;
  std::map<Uuid, std::shared_ptr<GpuContext>> contexts_;
};

using BufferId = std::uint64_t;
using Descriptors = std::vector<std::pair<BufferId, UniqueFd>>;

/// The source's half: holds the application's VRAM from the first export to the commit.
class OutgoingVram {
 public:
  explicit OutgoingVram(std::shared_ptr<const CudaDriver> driver) : contexts_(std::move(driver)) {}

  Status add(BufferId id, const Uuid& gpu, std::uint64_t size_bytes, UniqueFd descriptor);
  void remove(BufferId id) { buffers_.erase(id); }

  /// Which region of the receiver takes the buffer.
  void assign(BufferId id, transport::RegionId region);

  /// Sends every buffer once through `channel` and keeps the digest of the very bytes that were
  /// sent. Returns after the channel's flush.
  Status send(transport::Channel& channel, const digest::DigestKey& key);

  /// 16 bytes per chunk, in order, for every buffer; complete after send().
  std::map<BufferId, std::vector<digest::Digest>> digests() const;

  /// Descriptors that map the same VRAM in the application again (rollback).
  Result<Descriptors> descriptors() const;

  std::uint64_t total_bytes() const;
  std::size_t count() const { return buffers_.size(); }
  bool contains(BufferId id) const { return buffers_.contains(id); }

 private:
  struct Outgoing {
    Vram vram;
    transport::RegionId region = 0;
    std::vector<digest::Digest> digests;
  };
  Contexts contexts_;
  std::map<BufferId, Outgoing> buffers_;
};

/// The destination's half: creates VRAM and its landing region, uploads what has landed, proves it.
class IncomingVram {
 public:
  IncomingVram(std::shared_ptr<const CudaDriver> driver, landing::HugepagePolicy policy)
      : contexts_(std::move(driver)), policy_(policy) {}

  struct Wanted {
    BufferId id = 0;
    Uuid gpu;
    std::uint64_t size_bytes = 0;
  };

  /// Creates VRAM and a landing region for the buffers and page-locks it. On failure nothing of
  /// this call remains.
  Status prepare(const std::vector<Wanted>& wanted);

  /// Gives the buffer's VRAM back; its part of the landing region stays until destruction.
  void remove(BufferId id) { buffers_.erase(id); }

  /// Where the buffer's bytes land.
  std::span<std::byte> landing(BufferId id) const { return buffers_.at(id).landing; }

  /// Starts the copy of landed bytes into VRAM. Thread-safe with itself.
  Status upload(BufferId id, std::uint64_t offset, std::uint64_t length_bytes);

  /// Waits for all uploads, reads VRAM back and compares its digests with the sender's. kDataLoss
  /// names the first chunk that differs. Returns how many chunks were compared.
  Result<std::uint64_t> verify(const digest::DigestKey& key,
                               const std::map<BufferId, std::vector<digest::Digest>>& sent);

  Result<Descriptors> descriptors() const;
  Result<std::uint64_t> free_bytes(const Uuid& gpu);

  /// Why some landing memory is not made of hugepages; empty if all of it is.
  std::string note() const;

 private:
  struct Incoming {
    Vram vram;
    std::span<std::byte> landing;
    const Stream* stream = nullptr;
  };
  Status prepare_streams(const std::vector<Wanted>& wanted);

  Contexts contexts_;
  landing::HugepagePolicy policy_;
  std::vector<landing::LandingRegion> regions_;
  std::vector<RegisteredMemory> registered_;
  std::map<Uuid, Stream> streams_;
  std::map<BufferId, Incoming> buffers_;
};

}  // namespace gcr::mover
