// The door: how an agent on the same host talks to the preload library inside an application.
//
// When CUDA or HIP has started, the library makes a SOCK_SEQPACKET socketpair and a sealed memfd
// named "gcr-preload" whose content is one DoorCard. An agent that may ptrace the process finds the
// memfd among the process's descriptors, reads the card and takes the agent's end with pidfd_getfd.
// One agent talks at a time; it sends one DoorRequest per packet and waits for one DoorReply (an
// inventory answers in several packets, the last one marked). Descriptors travel by SCM_RIGHTS in
// the order of the entries of their packet. Both ends run on one host, so integers have its byte
// order; every struct has a fixed size, and either side refuses a packet of another size.
//
// Both ends live in the application, so packets outlast an agent that died. Every reply repeats the
// sequence number of its request: an agent starts at a random one and skips what it did not ask
// for. What an agent exported counts only for its session: an agent that requests a detach must
// itself hold a descriptor of every allocation.
//
// An agent excludes others with flock(LOCK_EX) on the memfd, opened again through /proc.
//
// Each request says what it leaves behind when it fails: the application always keeps running, or
// waits at the gate exactly as before the request.
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
  std::int32_t pid;       ///< the owner, in its own PID namespace: a forked child is not the owner
  std::uint32_t reserved;
};
static_assert(sizeof(DoorCard) == 24);

enum class Op : std::uint32_t {
  kInvalid = 0,
  /// Replies with a Summary. Looks for calls past the gate (preload/bindings.h), binds to the shims
  /// what can be, and says kPastGate of what cannot.
  kHello = 1,
  /// Replies with every physical allocation as entries, without descriptors. `generation` in the
  /// reply changes whenever an allocation appears or vanishes.
  kInventory = 2,
  /// As kInventory, for the ids in the request only, each with one descriptor that the agent then
  /// owns; the application keeps its own until kDetach. Unknown ids fail the request (kNotFound).
  kExport = 3,
  /// Closes the gate, if it is open, and waits up to `timeout_us` until no gated call is in flight,
  /// no stream is captured, and every context is synchronised. kTimeout: not yet, `obstacle` says
  /// why, and the gate is closed all the same. It opens by itself `lease_ms` after the last
  /// request, unless a kDetach came: from then on only kOpenGate opens it.
  kCloseGate = 4,
  /// Unmaps and releases every tracked allocation and closes its descriptors; addresses stay
  /// reserved. Primary contexts' stack limits are lowered too. Needs a closed gate, no blockers,
  /// nothing that has been bound past the gate since the last kHello (kPastGate, though it be
  /// brought back: its calls may be under way), and everything exported in this session (kNotFound
  /// names the first that was not). On failure everything is mapped again, or the reply says
  /// kBroken.
  kDetach = 5,
  /// Brings descriptors for the ids in the request (after kDetach, any number of packets). The
  /// application owns them from then on.
  kOffer = 6,
  /// Puts the stack limits back, imports every offered descriptor and maps everything where it was,
  /// on the same device ordinals. Fails with kNotFound and changes nothing while an id has no
  /// descriptor. Gate stays closed.
  kAttach = 7,
  /// Opens the gate. Needs to be attached.
  kOpenGate = 8,
  /// Gives pages of zeros back to the kernel. `ids` holds pairs of an address and a length in
  /// bytes, `count` numbers in all. The agent ensures that they are private anonymous memory that
  /// holds zeros, that nothing writes there meanwhile (every thread except the door's is stopped,
  /// no device has the pages), and that the mapping with the door's stack is not among them: then
  /// the memory reads as before. The library checks what it can (kBadRequest: nothing was dropped).
  /// kNotFound: the kernel would not drop a range (locked memory, say), `failed_id` is its address,
  /// those before it are dropped.
  kDropPages = 9,
  /// Marks whole mappings for transparent huge pages; `ids`, checks and failures as kDropPages. A
  /// hint: the memory's content does not change, and any thread may use it meanwhile.
  kUseHugePages = 10,
  /// With the gate closed: lets one call pass that is held at it, then waits as kCloseGate.
  /// kNotFound: no call is held.
  kStep = 11,
  /// Replies with a new userfaultfd of the application's memory, without its API handshake, as the
  /// one descriptor; the library closes its own. kNotFound: the kernel does not make one.
  kWatchMemory = 12,
  /// Replies with the memory that is registered with the driver (cuMemHostRegister,
  /// hipHostRegister) now, as entries of an address (`id`) and a size: those whose addresses are
  /// above the one number in `ids`, in their order. Fewer than kMaxEntries: there are no more.
  kRegisteredMemory = 13,
  /// After kOffer, where kAttach says that the driver takes no memory of this GPU from others:
  /// makes memory of the application's own for the ids in the request, at most kMaxEntries / 2, in
  /// place of what was offered. Replies with entries, of the device as it is now, and two
  /// descriptors each: the new memory's, which is not mapped yet, and the one that was offered,
  /// which the application gives up. The agent copies; then kAttach maps them. kBadRequest, and
  /// nothing changes: not detached, nothing was offered, or one of them is in host memory or
  /// shared. A failure takes this request's memory back; what was offered for it is gone.
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

/// What is still going on behind the closed gate.
enum class Obstacle : std::uint32_t {
  kNone = 0,
  kCallsInFlight = 1,  ///< calls that submit work did not return
  kCapture = 2,        ///< a stream is being captured
  kGpuWork = 3,        ///< submitted work did not finish
};

struct DoorRequest {
  std::uint32_t version;
  Op op;
  std::uint32_t timeout_us;  ///< kCloseGate, kStep
  std::uint32_t lease_ms;    ///< kCloseGate; 0: no lease
  std::uint32_t count;       ///< ids used
  std::uint32_t sequence;
  std::uint64_t session;  ///< random, not 0: one agent's use of the door
  std::uint64_t ids[kMaxEntries];
};
static_assert(sizeof(DoorRequest) == 32 + 8 * kMaxEntries);

/// One physical allocation, of CUDA or of HIP: what the library created for plain allocations, the
/// application itself, or another process and this one imported it.
struct DoorEntry {
  std::uint64_t id;          ///< stable for the allocation's life, across migrations too
  std::uint64_t size_bytes;  ///< a multiple of the driver's granularity; 0: imported and not mapped
  std::uint8_t device_uuid[16];
  std::uint32_t device_ordinal;
  std::uint32_t flags;     ///< bits of EntryFlag
  std::int32_t host_node;  ///< in host memory, of this NUMA node; -1: on the device
  std::uint32_t reserved;
};
static_assert(sizeof(DoorEntry) == 48);

enum EntryFlag : std::uint32_t {
  kMappedByLibrary = 1,      ///< made for plain allocations
  kMappedByApplication = 2,  ///< the application's own, made or imported
  kShared = 4,  ///< imported, or given to others: all its descriptors are duplicates of one
};

/// Why an application cannot be moved now; bits of Summary::blockers.
enum Blocker : std::uint32_t {
  kManagedMemory = 1,     ///< was allocated, and not all of it is freed
  kIpcExported = 2,       ///< a legacy IPC handle of an untracked allocation was given out
  kIpcImported = 4,       ///< untracked memory of another process is open here
  kForeignHandles = 8,    ///< memory is reachable in ways that a detach does not undo
  kStreamCapturing = 16,  ///< a stream is being captured at this moment
  kLostPools = 32,        ///< a pool was exported or imported, or has memory on the host
  kProfiled = 64,         ///< a profiler has attached itself to the driver (CUPTI)
  kPastGate = 128,        ///< an object calls the driver itself; in replies to kHello and kDetach
};

struct Summary {
  std::uint64_t generation;
  std::uint64_t tracked_bytes;
  std::uint64_t
      untracked_bytes;  ///< live allocations left with the driver, as far as they were seen
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
  std::uint32_t held_calls;  ///< that wait at the closed gate
  std::uint32_t withheld;    ///< lookups of driver functions that the library does not know
};
static_assert(sizeof(Summary) == 80);

struct DoorReply {
  std::uint32_t version;
  Outcome outcome;
  std::int32_t driver_result;  ///< the driver's code, 0 if none
  std::uint32_t count;         ///< entries used
  std::uint32_t last;          ///< 1 in the last packet of an answer
  std::uint32_t sequence;      ///< of the request
  Obstacle obstacle;           ///< kCloseGate, kStep
  std::uint32_t reserved;
  std::uint64_t duration_ns;    ///< time that the request took inside the application
  std::uint64_t failed_id;      ///< what failed, mostly an allocation; 0 if nothing
  std::uint64_t advised_bytes;  ///< kDropPages, kUseHugePages: bytes done
  Summary summary;              ///< always filled
  union {
    DoorEntry entries[kMaxEntries];
    char past_gate[256];  ///< where the summary says kPastGate: a sentence about the object
  };
};
static_assert(sizeof(DoorReply) == 56 + 80 + 48 * kMaxEntries);

}  // namespace gcr::door
