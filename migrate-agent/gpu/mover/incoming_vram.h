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
#include "migrate-agent/gpu/mover/zeros.h"
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

  static constexpr transport::RegionId kFirstRegion = 2;  ///< lower ones are not VRAM's

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

  /// The key of the migration and the mode; before the first prepare().
  void begin(const digest::DigestKey& key, Mode mode, const WindowLimits& limits);

  /// Asked before host memory is allocated, and told how much.
  using Reserve = std::function<Status(std::uint64_t bytes)>;

  /// Creates VRAM full of zeros for the buffers, and with the first of them the landing window; or,
  /// in the other modes, landing memory. Both are page-locked, except in kKeep. On failure nothing
  /// of this call remains. If there is too little VRAM for prefill, the VRAM of this call is
  /// released and the mode becomes kReload, for this call's buffers and later ones.
  Status prepare(const std::vector<Wanted>& wanted, const Reserve& reserve);

  /// Releases the buffer's VRAM, when nothing is being copied into it any more; its landing memory
  /// is kept for later buffers. Its region is closed.
  void remove(AllocationId id);

  /// Where a buffer's bytes land: in landing memory, or in the window if there is none. Regions are
  /// numbered from kFirstRegion; no number comes twice.
  struct Region {
    transport::RegionId id = 0;
    std::uint64_t size_bytes = 0;
    std::span<std::byte> landing;
  };
  Region region(AllocationId id) const;

  /// The landing window, which goes to arrived(); valid while this object lives. Once a buffer has
  /// been prefilled.
  transport::LandingWindow window();

  /// Takes note of what has landed in landing memory. Any number of threads, also while another one
  /// is in prepare() or remove(); what lands in a region that was removed is ignored.
  Status landed(transport::RegionId region, std::uint64_t offset, std::uint64_t length_bytes);

  /// Takes note of what has landed in the window, and starts its copy into VRAM. Within a chunk;
  /// threads as for landed().
  Status arrived(transport::RegionId region, std::uint64_t offset, transport::Place place);

  /// With `expected` from the sender: creates and fills VRAM if that was not done before, clears
  /// chunks that are expected to be zeros, waits for all copies, and compares the digest
  /// of every chunk in VRAM; in kKeep, only that in landing memory. kDataLoss names the first that
  /// differs. Returns how many were compared.
  Result<std::uint64_t> fill_and_verify(const VramDigests& expected);

  /// Of the VRAM itself; after fill_and_verify().
  Result<Descriptors> descriptors() const { return descriptors_of(buffers_); }
  /// From then on only descriptors own it. Any thread.
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
    device::Stream* upload_stream = nullptr;  // of uploads_ alone
    std::unique_ptr<device::Allocation> vram;
    std::vector<std::atomic<bool>> landed;  // by chunk: it has landed at least once
  };

  /// A GPU's: for uploads_, and for all else.
  struct Streams {
    std::unique_ptr<device::Stream> own;
    std::unique_ptr<device::Stream> upload;
  };

  Result<Streams*> streams_of(device::Gpu& gpu);
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
  Status upload(AllocationId id, const Incoming& buffer, std::uint64_t offset,
                std::uint64_t length);
  Status fill(const VramDigests& expected);
  Result<std::uint64_t> verify_landing(const VramDigests& expected) const;
  Status settle_zeros(const VramDigests& expected);
  Status spoil();
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
