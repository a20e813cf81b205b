// The destination's half of the mover: creates VRAM and its landing region, uploads what has
// landed, and verifies that VRAM holds what the source sent. Methods block; one thread at a time,
// except for landed().
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/landing/landing_region.h"
#include "migrate-agent/mover/vram_digester.h"
#include "migrate-agent/mover/zeros.h"
#include "transport/channel.h"

namespace gcr::mover {

class IncomingVram {
 public:
  /// Whether VRAM fills while chunks land, or only in fill().
  enum class Mode {
    kInvalid = 0,
    kPrefill,  ///< VRAM is created by prepare(); if there is too little, as kReload
    kReload,
  };

  IncomingVram(std::shared_ptr<const device::Driver> driver, landing::HugepagePolicy policy)
      : gpus_(std::move(driver)), policy_(policy) {}

  static constexpr transport::RegionId kFirstRegion = 2;  ///< lower ones are not VRAM's

  struct Wanted {
    AllocationId id;
    Uuid gpu;
    std::uint64_t size_bytes = 0;
    std::optional<std::uint32_t> host_node{};  ///< in host memory, of this NUMA node
  };

  /// The key of the migration and the mode; before the first prepare().
  void begin(const digest::DigestKey& key, Mode mode);

  /// Makes landing memory for the buffers, page-locks it, and creates VRAM full of zeros. On
  /// failure nothing of this call remains. If there is too little VRAM for prefill, all VRAM is
  /// released and the mode becomes kReload.
  Status prepare(const std::vector<Wanted>& wanted);

  /// Releases the buffer's VRAM; its landing memory is kept for later buffers.
  void remove(AllocationId id);

  /// Where a buffer's bytes land. Regions are numbered from kFirstRegion; no number comes twice.
  struct Region {
    transport::RegionId id = 0;
    std::span<std::byte> bytes;
  };
  Region region(AllocationId id) const;

  /// Takes note of what has landed and, in prefill, starts its copy into VRAM. Within a chunk. Any
  /// number of threads, also while another one is in prepare() or remove(); what lands in a region
  /// that was removed is ignored.
  Status landed(transport::RegionId region, std::uint64_t offset, std::uint64_t length_bytes);

  /// With `expected` from the sender: creates and fills VRAM if that was not done before, clears
  /// chunks that are expected to be zeros, waits for all copies, and compares the digest
  /// of every chunk in VRAM. kDataLoss names the first that differs. Returns how many were
  /// compared.
  Result<std::uint64_t> fill_and_verify(
      const std::map<AllocationId, std::vector<digest::Digest>>& expected);

  /// Of the VRAM itself; after fill_and_verify().
  Result<Descriptors> descriptors() const { return descriptors_of(buffers_); }
  Result<std::uint64_t> free_bytes(const Uuid& gpu);
  Mode mode() const { return mode_; }
  const std::shared_ptr<const device::Driver>& driver() const { return gpus_.driver(); }

  /// A note for users: why landing memory is not made of hugepages, why VRAM is not
  /// prefilled; empty if there is nothing.
  const std::string& note() const { return note_; }

 private:
  struct Incoming {
    std::shared_ptr<device::Gpu> gpu;
    std::uint64_t size_bytes = 0;
    std::optional<std::uint32_t> host_node;
    transport::RegionId region = 0;
    std::span<std::byte> landing;  // its bytes, at the start of `place`
    std::span<std::byte> place;
    device::Stream* stream = nullptr;
    std::unique_ptr<device::Allocation> vram;
    std::vector<std::atomic<bool>> landed;  // by chunk: it has landed at least once
  };
  using Expected = std::map<AllocationId, std::vector<digest::Digest>>;

  Result<Incoming> place(const Wanted& wanted);
  Status turn_into_reload(std::string why, std::map<AllocationId, Incoming>& created);
  Status take_landing_memory(const std::vector<Wanted>& wanted);
  Status create_vram(AllocationId id, Incoming& buffer);
  Status clear(AllocationId id, const Incoming& buffer, std::uint64_t offset, std::uint64_t length);
  Status upload(AllocationId id, const Incoming& buffer, std::uint64_t offset,
                std::uint64_t length);
  Status fill(const Expected& expected);
  Status settle_zeros(const Expected& expected);
  Status spoil();
  Status synchronize() const;

  device::Gpus gpus_;
  landing::HugepagePolicy policy_;
  Mode mode_ = Mode::kInvalid;
  std::optional<VramDigester> digester_;
  std::vector<landing::LandingRegion> regions_;
  std::vector<std::unique_ptr<device::HostMemory>> page_locked_;
  std::multimap<std::uint64_t, std::span<std::byte>> free_;  // landing memory by its length
  std::map<Uuid, std::unique_ptr<device::Stream>> streams_;
  /// Held while buffers_ or the VRAM of one changes, and in landed(), which only starts copies. The
  /// thread that changes them may read without it.
  std::mutex lanes_mutex_;
  std::map<AllocationId, Incoming> buffers_;
  std::map<transport::RegionId, AllocationId> buffer_of_region_;
  transport::RegionId next_region_ = kFirstRegion;
  std::string note_;
};

}  // namespace gcr::mover
