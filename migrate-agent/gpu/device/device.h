// GPUs as the agent uses them, of any vendor: what the mover copies and digests with, and what
// takes a process's control state out of the driver and back. There is a folder below this one for
// each vendor; no other folder names a driver's types.
//
// An object keeps alive what it needs, and may be destroyed from any thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/gpu/digest/digest.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/uuid.h"

namespace gcr::device {

/// An address as one GPU sees it, for calls to that GPU alone.
using Address = std::uint64_t;

enum class Vendor : std::uint8_t { kNvidia, kAmd };

/// One GPU of this machine, in the driver's order.
struct GpuInfo {
  Vendor vendor = Vendor::kNvidia;
  int driver_version = 0;  ///< from cuDriverGetVersion() or hipRuntimeGetVersion()
  int ordinal = 0;
  Uuid uuid;                     ///< of an AMD GPU: 16 characters, as HIP gives them
  std::string pci_address = {};  ///< of an AMD GPU alone: "0000:c1:00.0"
  std::string name = {};
  std::uint64_t total_bytes = 0;
  std::uint32_t compute_mode = 0;  ///< as the driver numbers it; 0: any process may use it
};

/// Where a GPU's contents go: `from` at the source becomes `to` at the destination.
struct GpuPair {
  Uuid from;
  Uuid to;
};

class Calls;  // calls.h
class Gpu;

/// A queue of one GPU. All calls but synchronize() only enqueue; the caller leaves the memory
/// untouched until synchronize() has returned. Any thread, one at a time.
class Stream {
 public:
  /// Takes over the driver's own handle.
  Stream(std::shared_ptr<Gpu> gpu, void* handle) : gpu_(std::move(gpu)), handle_(handle) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Status copy_within(Address to, Address from, std::uint64_t bytes);
  Status copy_out(std::byte* to, Address from, std::uint64_t bytes);
  Status copy_in(Address to, const std::byte* from, std::uint64_t bytes);
  Status fill(Address to, std::byte value, std::uint64_t bytes);
  /// Waits for all that was enqueued; an error of any of it shows here.
  Status synchronize();
  void* handle() const { return handle_; }

 private:
  const std::shared_ptr<Gpu> gpu_;
  void* const handle_;
};

/// VRAM, or host memory, in physical memory of its own, mapped here for reading and writing, and
/// owned through a descriptor that outlives any one process (design decision 1).
class Allocation {
 public:
  /// Has no memory yet: Gpu::create() and import() give it some.
  Allocation(std::shared_ptr<Gpu> gpu, std::uint64_t size_bytes)
      : gpu_(std::move(gpu)), size_bytes_(size_bytes) {}
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  Address address() const { return address_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  Gpu& gpu() const { return *gpu_; }

  /// A descriptor of the same memory, owned by the caller.
  Result<UniqueFd> duplicate_descriptor() const;

 private:
  friend class Gpu;
  const Calls& calls() const;
  Status create(std::optional<std::uint32_t> host_node);
  Status import(UniqueFd descriptor);
  Status map();

  const std::shared_ptr<Gpu> gpu_;
  const std::uint64_t size_bytes_;
  Address address_ = 0;
  UniqueFd descriptor_;  ///< that it was imported or exported with
  std::uint64_t handle_ = 0;
  bool mapped_ = false;
};

/// VRAM of the agent's own, for copies and tables, which cannot be exported.
class Scratch {
 public:
  /// Takes over the VRAM at `address`.
  Scratch(std::shared_ptr<Gpu> gpu, Address address) : gpu_(std::move(gpu)), address_(address) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Address address() const { return address_; }

 private:
  const std::shared_ptr<Gpu> gpu_;
  const Address address_;
};

/// Page-locked host memory, which every GPU of the machine reads and writes.
class HostMemory {
 public:
  /// How it has become page-locked: allocated by the driver, or locked for its owner.
  enum class Origin { kAllocated, kLocked };

  /// Takes over page-locked memory, which is at `address` on the GPUs.
  HostMemory(std::shared_ptr<Gpu> gpu, std::span<std::byte> bytes, Address address, Origin origin)
      : gpu_(std::move(gpu)), bytes_(bytes), address_(address), origin_(origin) {}
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }
  /// The address of its first byte on the GPUs.
  Address address() const { return address_; }

 private:
  const std::shared_ptr<Gpu> gpu_;
  const std::span<std::byte> bytes_;
  const Address address_;
  const Origin origin_;
};

/// One chunk as a Digester reads it: 16-byte aligned, of any length up to kChunkBytes. Memory is
/// read up to the next multiple of 16 bytes; bytes behind the chunk's end do not change the digest.
struct Chunk {
  Address address = 0;
  std::uint32_t length_bytes = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Chunk) == 16);

/// The agent's own kernel, compiled for one GPU.
struct Kernel {
  void* module = nullptr;
  void* function = nullptr;
};

/// Digests chunks in place (digest.h), at memory speed. Keeps its key in VRAM. Thread-safe. Destroy
/// it only when everything that it enqueued has been executed.
class Digester {
 public:
  /// Not usable yet: see Gpu::digester().
  Digester(std::shared_ptr<Gpu> gpu, std::unique_ptr<Scratch> key)
      : gpu_(std::move(gpu)), key_(std::move(key)) {}
  ~Digester();
  Digester(const Digester&) = delete;
  Digester& operator=(const Digester&) = delete;

  /// Enqueues on `stream`, which is of the same GPU, one launch that puts the digest of chunks[i],
  /// equal to digest_chunk() of its bytes, into digests[i]. Both arrays lie in VRAM or in
  /// page-locked memory, 16-byte aligned. Nothing is enqueued for a count of 0 or after a failure.
  /// Bad addresses or lengths are an error of the caller that the stream shows.
  Status enqueue(const Chunk* chunks, std::size_t count, digest::Digest* digests,
                 Stream& stream) const;

 private:
  friend class Gpu;
  const Calls& calls() const;
  Status load_kernel();
  Status copy_key(const digest::DigestKey& key);
  Status verify(const digest::DigestKey& key) const;

  const std::shared_ptr<Gpu> gpu_;
  const std::unique_ptr<Scratch> key_;  ///< k[], then K[]
  Kernel kernel_;
  unsigned max_blocks_ = 0;  ///< as many as the GPU can run at the same time
};

/// One GPU that is in use: while this lives, the driver holds a context on it. Owned by shared
/// pointers. Any thread.
class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  Gpu(GpuInfo info, std::unique_ptr<const Calls> calls);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const GpuInfo& info() const { return info_; }
  const Calls& calls() const { return *calls_; }

  /// VRAM that is free now.
  Result<std::uint64_t> free_bytes();

  /// `size_bytes` is a multiple of 2 MiB. In VRAM, or in host memory of a NUMA node.
  /// kResourceExhausted says how much VRAM is free.
  Result<std::unique_ptr<Allocation>> create(std::uint64_t size_bytes,
                                             std::optional<std::uint32_t> host_node);

  /// Maps what an application has exported. The descriptor is kept: an imported allocation cannot
  /// be exported again, and a rollback hands it back.
  Result<std::unique_ptr<Allocation>> import(UniqueFd descriptor, std::uint64_t size_bytes);

  /// kResourceExhausted if less VRAM than that is free.
  Result<std::unique_ptr<Scratch>> scratch(std::uint64_t size_bytes);

  Result<std::unique_ptr<HostMemory>> pinned(std::uint64_t size_bytes);

  /// Page-locks memory that the caller owns, as long as the returned object lives.
  Result<std::unique_ptr<HostMemory>> page_lock(std::span<std::byte> bytes);

  Result<std::unique_ptr<Stream>> stream();

  /// The object keeps no reference to `key`. kResourceExhausted if less than 130 KiB of VRAM are
  /// free; kUnsupported if the GPU computes other digests than the CPU.
  Result<std::unique_ptr<Digester>> digester(const digest::DigestKey& key);

 private:
  Result<std::unique_ptr<HostMemory>> host_memory(std::span<std::byte> bytes,
                                                  HostMemory::Origin origin,
                                                  std::string_view doing);

  const GpuInfo info_;
  const std::unique_ptr<const Calls> calls_;
};

/// Moves a process's control state: everything that the driver holds for it except tracked VRAM.
/// RUNNING -lock-> LOCKED -checkpoint-> CHECKPOINTED -restore-> LOCKED -unlock-> RUNNING.
/// Calls block and must never be interrupted: a process that is interrupted inside one is lost.
/// PIDs are those of the caller's PID namespace.
class Control {
 public:
  /// Zero is never used.
  enum class State {
    kInvalid = 0,
    kRunning,
    kLocked,
    kCheckpointed,
    kFailed,  ///< the driver could not restore it, and another attempt cannot succeed
  };

  virtual ~Control() = default;

  /// Whether CRIU's plugin moves control state in the dump and the restore. If so, no call here
  /// does anything, and the state of a process is always kRunning.
  virtual bool goes_with_dump() const = 0;

  /// The process's state in the driver now. kNotFound if the process does not use the driver.
  virtual Result<State> state() const = 0;

  /// Stops further calls and waits for submitted work. On failure the process runs on.
  virtual Status lock(std::chrono::milliseconds timeout) const = 0;

  /// Moves the control state into host memory. On failure the process stays locked.
  virtual Status checkpoint() const = 0;

  /// Moves it back into the driver. `pairs` empty: onto the same GPUs. Else they name every NVIDIA
  /// GPU of the machine where the checkpoint was made, first those that the process uses. On
  /// failure the process stays checkpointed, and another call may succeed.
  virtual Status restore(const std::vector<GpuPair>& pairs) const = 0;

  virtual Status unlock() const = 0;

  /// The thread that must be able to run during restore(), as the driver numbers it; 0: none. Only
  /// while the process runs: a stopped process does not answer.
  virtual Result<pid_t> restore_thread() const = 0;
};

/// A loaded and initialised driver, or all that a host has (drivers/drivers.h). Any thread.
class Driver {
 public:
  virtual ~Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  virtual const std::vector<GpuInfo>& gpus() const = 0;
  /// One of gpus().
  virtual Result<std::shared_ptr<Gpu>> open(const GpuInfo& gpu) const = 0;
  virtual std::unique_ptr<Control> control(pid_t pid) const = 0;
  /// Whether the process has loaded the driver's library, used or not. Does not ask the process.
  virtual bool is_in(pid_t pid) const = 0;

 protected:
  Driver() = default;
};

/// The GPUs that one user of a driver needs. Each is opened when it is first asked for, and kept
/// open. One thread at a time.
class Gpus {
 public:
  explicit Gpus(std::shared_ptr<const Driver> driver) : driver_(std::move(driver)) {}

  /// kNotFound if this machine has no such GPU.
  Result<std::shared_ptr<Gpu>> on(const Uuid& uuid);

  const std::shared_ptr<const Driver>& driver() const { return driver_; }

 private:
  std::shared_ptr<const Driver> driver_;
  std::map<Uuid, std::shared_ptr<Gpu>> gpus_;
};

}  // namespace gcr::device
