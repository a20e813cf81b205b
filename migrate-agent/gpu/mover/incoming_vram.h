// The destination's half of the mover: creates VRAM and the memory that its bytes land in, uploads
// what has landed, and verifies that VRAM holds what the source sent. Methods block; one thread at
// a time, except for landed() and arrived().
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/gpu/mover/upload_queue.h"
#include "migrate-agent/gpu/mover/vram_digester.h"
#include "migrate-agent/linux/hostmem/landing_region.h"
#include "transport/channel.h"

namespace gcr::mover {

class IncomingVram {
 public:
  /// Whether VRAM fills while chunks land, or only in fill().
  enum class Mode {
    kInvalid = 0,
    kPrefill,  ///< VRAM is created by prepare(), and filled through the landing window; if there
               ///< is too little, as kReload
    kReload,   ///< bytes stay in landing memory, of which there is as much as VRAM
    kKeep,     ///< as kReload, but no VRAM is made: landing memory is in files, which outlive this
  };

  IncomingVram(std::shared_ptr<const device::Driver> driver, hostmem::HugepagePolicy policy)
      : gpus_(std::move(driver)), policy_(policy) {}

  static constexpr transport::RegionId kFirstRegion = 2;  ///< lower ones are not VRAM

  struct Wanted {
    AllocationId id;
    Uuid gpu;
    std::uint64_t size_bytes = 0;
    std::optional<std::uint32_t> host_node{};  ///< in host memory, of this NUMA node
  };

  /// How large the landing window may become, and how many lanes share it: at least 1.
  struct WindowLimits {
    std::uint64_t most_bytes = 0;
    unsigned lanes = 0;

    /// For so much VRAM: no more than that, but a few places for each lane, as VRAM may grow.
    std::uint64_t needed_for(std::uint64_t vram_bytes) const;
  };

  /// Sets the key of the migration's digests and the mode; before the first prepare().
  void begin(const digest::DigestKey& key, Mode mode, const WindowLimits& limits);

  /// Called before so much host memory is allocated; an error prevents it.
  using Reserve = std::function<Status(std::uint64_t bytes)>;

  /// Creates VRAM full of zeros for the buffers, and with the first of them the landing window; or,
  /// in the other modes, landing memory. Both are page-locked, except in kKeep. On failure nothing
  /// of this call remains. If there is too little VRAM for prefill, the VRAM of this call is
  /// released and the mode becomes kReload, for this call's buffers and later ones.
  Status prepare(const std::vector<Wanted>& wanted, const Reserve& reserve);

  /// Releases the buffer's VRAM; its landing memory is kept for later buffers. Its region must have
  /// been removed from the receiver. Waits for copies in flight.
  void remove(AllocationId id);

  /// Where a buffer's bytes land: in landing memory, or in the window if there is none. Regions are
  /// numbered from kFirstRegion; no number comes twice.
  struct Region {
    transport::RegionId id = 0;
    std::uint64_t size_bytes = 0;
    std::span<std::byte> landing;
  };
  Region region(AllocationId id) const;

  /// The landing window, which calls arrived(); valid while this object lives. After a buffer was
  /// prefilled.
  transport::LandingWindow window();

  /// Notes which chunks have landed in landing memory. Several threads at once, also while another
  /// one is in prepare() or remove(); what lands in a region that was removed is ignored.
  Status landed(transport::RegionId region, std::uint64_t offset, std::uint64_t length_bytes);

  /// Notes a part of a chunk that has landed in the window, and enqueues its copy into VRAM.
  /// Threads as for landed().
  Status arrived(transport::RegionId region, std::uint64_t offset, transport::Place place);

  /// Creates and fills VRAM unless it was prefilled, clears chunks that must be zeros, waits for
  /// all copies, and compares the digest of every chunk in VRAM with `expected`, from the sender;
  /// in kKeep, of every chunk in landing memory. kDataLoss names the first that differs. Returns
  /// how many were compared.
  Result<std::uint64_t> fill_and_verify(const VramDigests& expected);

  /// Of the VRAM itself; after fill_and_verify().
  Result<Descriptors> descriptors() const { return descriptors_of(buffers_); }
  /// Releases the VRAM here: from then on only descriptors own it. Any thread.
  void let_go();
  Result<std::uint64_t> free_bytes(const Uuid& gpu);

  /// In kKeep: the landing memory, and where in it a buffer lies.
  const std::vector<hostmem::LandingRegion>& landing() const { return regions_; }
  struct Kept {
    std::size_t region = 0;  ///< of landing()
    std::uint64_t offset = 0;
  };
  Kept kept(AllocationId id) const;

  Mode mode() const { return mode_; }
  const std::shared_ptr<const device::Driver>& driver() const { return gpus_.driver(); }

  /// A note for users: why landing memory has no hugepages, or why VRAM is not prefilled; or empty.
  const std::string& note() const { return note_; }

 private:
  /// Of one GPU.
  struct Streams {
    std::unique_ptr<device::Stream> upload;  // of uploads_ alone
    std::unique_ptr<device::Stream> own;     // for all other work
  };
  struct Incoming {
    std::shared_ptr<device::Gpu> gpu;
    std::uint64_t size_bytes = 0;
    std::optional<std::uint32_t> host_node;
    transport::RegionId region = 0;
    std::span<std::byte> landing{};  // its bytes, at the start of `place`
    std::span<std::byte> place{};
    const Streams* streams = nullptr;
    std::unique_ptr<device::Allocation> vram;
    std::vector<std::atomic<bool>> landed{};  // by chunk: it has landed at least once
  };

  Result<const Streams*> streams_of(device::Gpu& gpu);
  Result<Incoming> place(const Wanted& wanted);
  Result<std::map<AllocationId, Incoming>> create(const std::vector<Wanted>& wanted);
  Status turn_into_reload(std::string why, std::map<AllocationId, Incoming>& created);
  Result<std::span<std::byte>> host_memory(std::uint64_t bytes, const Uuid& gpu,
                                           const Reserve& reserve);
  Status open_window(const std::vector<Wanted>& wanted, const Reserve& reserve);
  Status take_landing_memory(const std::vector<Wanted>& wanted, const Reserve& reserve);
  Incoming* mark_landed(transport::RegionId region, std::uint64_t offset,
                        std::uint64_t length_bytes);
  Status create_vram(AllocationId id, Incoming& buffer);
  Status clear(AllocationId id, const Incoming& buffer, std::uint64_t offset, std::uint64_t length);
  Status upload(const Incoming& buffer, const ChunkRef& chunk);
  Status fill();
  Result<std::uint64_t> verify_landing(const VramDigests& expected) const;
  Status clear_zeros(const VramDigests& expected);
  Status corrupt_first_byte();
  Status synchronize() const;

  device::Gpus gpus_;
  hostmem::HugepagePolicy policy_;
  Mode mode_ = Mode::kInvalid;
  WindowLimits limits_;
  std::optional<VramDigester> digester_;
  std::vector<hostmem::LandingRegion> regions_;
  std::vector<std::unique_ptr<device::HostMemory>> page_locked_;
  std::span<std::byte> window_;
  std::multimap<std::uint64_t, std::span<std::byte>> free_;  // landing memory by its length
  std::map<Uuid, Streams> streams_;
  /// Held while buffers_ changes, and in landed() and arrived(). The thread that changes it may
  /// read without it.
  std::mutex lanes_mutex_;
  std::map<AllocationId, Incoming> buffers_;
  std::map<transport::RegionId, AllocationId> buffer_of_region_;
  transport::RegionId next_region_ = kFirstRegion;
  std::string note_;
  std::optional<UploadQueue> uploads_;  // of the window
};

}  // namespace gcr::mover
