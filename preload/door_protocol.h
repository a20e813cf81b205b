// The door: how an agent on the same host talks to the preload library inside an application.
//
// When CUDA or HIP has started, the library creates a SOCK_SEQPACKET socketpair and a sealed memfd
// named "gcr-preload" whose content is one DoorCard. An agent that may ptrace the process finds the
// memfd among the process's descriptors, reads the card and takes the agent's end with pidfd_getfd.
// One agent talks at a time; it sends one DoorRequest per packet and waits for one DoorReply (an
// inventory answers in several packets, the last one marked). Descriptors travel by SCM_RIGHTS in
// the order of the entries of their packet. Both ends run on one host, so integers have its byte
// order; every struct has a fixed size, and either side refuses a packet of another size.
//
// Both ends live in the application, so packets outlast an agent that died. Every reply repeats the
// sequence number of its request: an agent starts at a random one and skips replies to other
// requests. Exports count only for the session that made them: an agent that requests a detach must
// itself hold a descriptor of every allocation.
//
// An agent excludes others with flock(LOCK_EX) on the memfd, opened again through /proc.
//
// The description of each request says what state a failure leaves. In all cases the application
// keeps running, or waits at the gate as before the request.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gcr::door {

inline constexpr char kMemfdName[] = "gcr-preload";
inline constexpr std::uint64_t kMagic = 0x314b52414d524347;  // "GCRMARK1" read as little-endian
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::uint32_t kMaxEntries = 64;  ///< entries, and descriptors, in one packet

/// The memfd's whole content.
struct DoorCard {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t agent_fd;  ///< the agent's end, in the application's descriptor table
  std::int32_t pid;       ///< of the owner, in its own PID namespace; a forked child differs
  std::uint32_t reserved;
};
static_assert(sizeof(DoorCard) == 24);

enum class Op : std::uint32_t {
  kInvalid = 0,
  /// Replies with a Summary. Scans for calls past the gate (preload/bindings.h) and binds them to
  /// the shims; reports kPastGate if one cannot be bound.
  kHello = 1,
  /// Replies with every physical allocation as entries, without descriptors. `generation` in the
  /// reply changes each time an allocation is created or freed.
  kInventory = 2,
  /// Replies with entries for the ids in the request, each with one descriptor that the agent then
  /// owns; the application keeps its own until kDetach. An unknown id fails the request
  /// (kNotFound).
  kExport = 3,
  /// Closes the gate, if it is open, and waits up to `timeout_us` until no gated call is in flight,
  /// no stream is captured, and every context is synchronised. kTimeout: not yet, `obstacle` says
  /// why, and the gate stays closed. It opens by itself `lease_ms` after the last request, except
  /// after a kDetach: then only kOpenGate opens it.
  kCloseGate = 4,
  /// Unmaps and releases every tracked allocation and closes its descriptors; addresses stay
  /// reserved. Also lowers the stack limits of primary contexts. Requires a closed gate, no
  /// blockers, no reference that was bound past the gate since the last kHello (kPastGate even if
  /// it was rebound: its calls may be in flight), and that everything was exported in this session
  /// (kNotFound names the first allocation that was not). On failure everything is mapped again, or
  /// the reply says kBroken.
  kDetach = 5,
  /// Passes descriptors for the ids in the request to the application, which then owns them. Only
  /// after kDetach; in any number of packets.
  kOffer = 6,
  /// Restores the stack limits, imports every offered descriptor and maps everything where it was,
  /// on the same device ordinals. Fails with kNotFound and changes nothing while an id has no
  /// descriptor. The gate stays closed.
  kAttach = 7,
  /// Opens the gate. Refused while detached.
  kOpenGate = 8,
  /// Returns pages of zeros to the kernel; the memory reads as before. `ids` holds pairs of an
  /// address and a length in bytes, `count` numbers in all. The agent ensures that they are private
  /// anonymous memory that holds zeros, that nothing writes there meanwhile (every thread except
  /// the door's is stopped, no device has the pages), and that the mapping with the door's stack is
  /// not among them. The library checks what it can (kBadRequest: nothing was dropped). kNotFound:
  /// the kernel refused to drop a range (locked memory, say); `failed_id` is its address, and those
  /// before it are dropped.
  kDropPages = 9,
  /// Marks whole mappings for transparent huge pages; `ids`, checks and failures as kDropPages. A
  /// hint: the memory's content does not change, and any thread may use it meanwhile.
  kUseHugePages = 10,
  /// Lets one call pass that is held at the closed gate, then waits as kCloseGate. kNotFound: no
  /// call is held.
  kStep = 11,
  /// Replies with a new userfaultfd of the application's memory, without its API handshake, as the
  /// one descriptor; the library closes its own. kNotFound: the kernel does not provide one.
  kWatchMemory = 12,
  /// Replies with the host memory that is registered with the driver now (cuMemHostRegister,
  /// hipHostRegister), as entries of an address (`id`) and a size, in the order of addresses: those
  /// above the one number in `ids`. Fewer than kMaxEntries entries: there are no more.
  kRegisteredMemory = 13,
  /// Replaces offered memory by new memory of the application, for the ids in the request, at most
  /// kMaxEntries / 2. For use after kOffer, when kAttach failed because the driver does not import
  /// memory of this GPU from other processes. Replies with entries, with the device as it is now,
  /// and two descriptors each: the new memory, which is not mapped yet, and the offered one, which
  /// the application releases. The agent copies; then kAttach maps the new memory. kBadRequest, and
  /// nothing changes: not detached, no descriptor was offered, or an allocation is shared or in
  /// host memory. Any other failure releases the new memory of this request; its offers are lost.
  kReplace = 14,
};

enum class Outcome : std::uint32_t {
  kInvalid = 0,
  kOk = 1,
  kBadRequest = 2,  ///< wrong version, size, count or state
  kNotFound = 3,
  kTimeout = 4,
  kDriver = 5,  ///< a driver call failed: see driver_result
  kBroken = 6,  ///< as kDriver, and the application's allocations are not all mapped
};

/// Activity that has not ended behind the closed gate.
enum class Obstacle : std::uint32_t {
  kNone = 0,
  kCallsInFlight = 1,  ///< calls that submit work have not returned
  kCapture = 2,        ///< a stream is being captured
  kGpuWork = 3,        ///< submitted work has not finished
};

struct DoorRequest {
  std::uint32_t version;
  Op op;
  std::uint32_t timeout_us;  ///< kCloseGate, kStep
  std::uint32_t lease_ms;    ///< kCloseGate; 0: no lease
  std::uint32_t count;       ///< number of ids
  std::uint32_t sequence;
  std::uint64_t session;  ///< random, not 0; identifies one agent's use of the door
  std::uint64_t ids[kMaxEntries];
};
static_assert(sizeof(DoorRequest) == 32 + 8 * kMaxEntries);

/// One physical allocation of CUDA or HIP. It was created by the library for plain allocations,
/// created by the application itself, or imported from another process.
struct DoorEntry {
  std::uint64_t id;          ///< stable for the allocation's life, also across migrations
  std::uint64_t size_bytes;  ///< a multiple of the driver's granularity; 0: imported and not mapped
  std::uint8_t device_uuid[16];
  std::uint32_t device_ordinal;
  std::uint32_t flags;     ///< bits of EntryFlag
  std::int32_t host_node;  ///< in host memory, of this NUMA node; -1: on the device
  std::uint32_t reserved;
};
static_assert(sizeof(DoorEntry) == 48);

enum EntryFlag : std::uint32_t {
  kMappedByLibrary = 1,      ///< created by the library for plain allocations
  kMappedByApplication = 2,  ///< created or imported by the application
  kShared = 4,  ///< imported, or exported to others: all its descriptors are duplicates of one
};

/// Reasons why an application cannot be moved now; bits of Summary::blockers.
enum Blocker : std::uint32_t {
  kManagedMemory = 1,     ///< managed memory is allocated
  kIpcExported = 2,       ///< a legacy IPC handle of an untracked allocation was exported
  kIpcImported = 4,       ///< untracked memory of another process is open here
  kForeignHandles = 8,    ///< memory is reachable in ways that a detach does not undo
  kStreamCapturing = 16,  ///< a stream is being captured at this moment
  kLostPools = 32,        ///< a pool was exported or imported, or has memory on the host
  kProfiled = 64,         ///< a profiler is attached to the driver (CUPTI)
  kPastGate = 128,        ///< an object calls the driver directly; in replies to kHello and kDetach
};

struct Summary {
  std::uint64_t generation;
  std::uint64_t tracked_bytes;
  std::uint64_t untracked_bytes;  ///< live allocations made by the driver, as far as they are known
  std::uint64_t gated_calls_in_flight;
  std::uint32_t allocations;
  std::uint32_t contexts;
  std::uint32_t blockers;   ///< bits of Blocker
  std::uint32_t fallbacks;  ///< allocations that could not be backed
  std::int32_t door_tid;    ///< the library's thread, in the application's PID namespace
  std::uint32_t gate_closed;
  std::uint32_t detached;
  std::uint32_t
      lowered_stacks;        ///< contexts whose stack limit is lowered, between detach and attach
  std::uint64_t door_stack;  ///< an address in the stack of the library's thread
  std::uint32_t held_calls;  ///< calls that wait at the closed gate
  std::uint32_t withheld;    ///< refused lookups of driver functions that the library does not know
};
static_assert(sizeof(Summary) == 80);

struct DoorReply {
  std::uint32_t version;
  Outcome outcome;
  std::int32_t driver_result;  ///< the driver's code, 0 if none
  std::uint32_t count;         ///< number of entries
  std::uint32_t last;          ///< 1 in the last packet of an answer
  std::uint32_t sequence;      ///< of the request
  Obstacle obstacle;           ///< kCloseGate, kStep
  std::uint32_t reserved;
  std::uint64_t duration_ns;    ///< time that the request took inside the application
  std::uint64_t failed_id;      ///< the allocation (or address) that failed; 0 if none
  std::uint64_t advised_bytes;  ///< kDropPages, kUseHugePages: bytes done
  Summary summary;              ///< always filled
  union {
    DoorEntry entries[kMaxEntries];
    char past_gate[256];  ///< with kPastGate in the summary: a sentence about the object
  };
};
static_assert(sizeof(DoorReply) == 56 + 80 + 48 * kMaxEntries);

}  // namespace gcr::door
