// Stream-ordered memory (decision 1): the driver's pools keep their identity and attributes, but
// the library provides their memory. Pools that can be exported, pools on the host or of managed
// memory, and allocations of graphs are left to the driver entirely.
//
// Each free gets a ticket, and its range belongs to the stream that freed it (pool_ranges.h). That
// stream may reuse it at once. Other streams may reuse it when the GPU is known to have passed the
// free: by an event that was recorded with it (a mark), or because the application synchronised. A
// pool grows before it makes one stream wait for another, as CUDA documents for
// CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES. Dependencies through the application's own
// events are not followed (CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES): the driver would reuse
// a range because of one; the pool grows instead.
//
// A pool that only one stream uses records no events.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory_resource>
#include <optional>
#include <vector>

#include "preload/memory/inventory.h"
#include "preload/memory/pool_ranges.h"

namespace gcr::preload {

struct Runtime;

/// One of the driver's pools; lives as long as the pool or an allocation from it.
struct Pool {
  PoolHandle* handle = nullptr;  ///< null during and after its destruction
  bool destroyed = false;
  int device = 0;
  bool backed = false;  ///< false: left to the driver; the members below are unused
  std::size_t most_bytes = 0;
  std::uint64_t accessors = 0;  ///< bit N: device N may use it
  PoolBehaviour behaviour;
  std::uint64_t only_stream = 0;  ///< the first stream that used it; 0: none yet
  bool several_streams = false;
  PoolRanges ranges;
  std::uint64_t reserved_bytes = 0, most_reserved_bytes = 0;
  std::uint64_t used_bytes = 0, most_used_bytes = 0;
};

/// A stream with stream-ordered frees. Its number is never reused.
struct PoolStream {
  /// An event behind the free of `ticket`; if exact, with no other work in between.
  struct Mark {
    std::uint64_t ticket;
    Event* event;
    bool exact;
  };

  explicit PoolStream(std::pmr::memory_resource* nodes) : marks(nodes) {}

  Context* context = nullptr;
  Stream* handle = nullptr;  ///< null for default streams, whose names are ambiguous
  int device = 0;
  std::uint64_t last_ticket = 0;    ///< of its last free
  std::uint64_t passed_ticket = 0;  ///< the GPU has passed its frees up to this one
  std::pmr::deque<Mark> marks;      ///< not known to be passed, oldest first
  std::vector<Event*> spare_events;
  bool destroyed = false;
};

struct Pools {
  std::pmr::unsynchronized_pool_resource nodes;
  std::list<Pool> all;
  std::map<std::uint64_t, PoolStream> streams;  ///< by number
  PoolHandle* current[kMaxDevices] = {};        ///< cached; null: not known
  std::atomic<std::uint64_t> tickets{0};        ///< number of frees so far, in all pools
  bool any_graph_memory = false;                ///< a graph has allocation nodes
  std::uint64_t graph_bytes = 0;                ///< bytes reserved by graphs at the last query
};

/// Returns Result::kSuccess unless `stream` is being captured, else the error of a call that is not
/// allowed during a capture. The caller holds the mutex.
Result refuse_captured(Runtime& r, Stream* stream);

/// Allocates from `pool`, null for the current one of the stream's device, for later work of
/// `stream`. Nullopt: the driver must allocate. Takes the mutex.
std::optional<Result> allocate_in_order(Runtime& r, Address* address, std::size_t requested_bytes,
                                        PoolHandle* pool, Stream* stream);

/// Frees memory from allocate_in_order() behind the work of `stream`. Nullopt: `address` is in no
/// pool. Takes the mutex.
std::optional<Result> free_in_order(Runtime& r, Address address, Stream* stream);

/// Frees memory from allocate_in_order() that the GPU no longer uses. Nullopt and mutex as above.
std::optional<Result> free_unused(Runtime& r, Address address);

/// The pool of a handle; looks it up in the driver if it is not known, null if that fails. Takes
/// the mutex. The pool lives as long as the driver's.
Pool* pool_of(Runtime& r, PoolHandle* handle);

/// The properties of a pool that the application requested.
struct PoolWanted {
  int device = -1;             ///< -1: on no device, or managed memory
  bool plain = false;          ///< no special properties: the library can back it
  std::size_t most_bytes = 0;  ///< 0: no limit
};

/// Records a pool that was created, if its memory is on a device. Takes the mutex.
void note_pool(Runtime& r, PoolHandle* handle, const PoolWanted& wanted);

/// Destroys a pool by the application's call `driver`. Existing allocations stay valid. Takes the
/// mutex.
Result destroy_pool(Runtime& r, PoolHandle* handle, RealCall driver);

/// Applies access rights of a pool that the driver has accepted. Takes the mutex.
Result set_pool_access(Runtime& r, PoolHandle* handle, std::size_t count,
                       FunctionRef<Access(std::size_t)> access_at);

/// Marks the last free of a stream before the stream is destroyed, so that all streams can reuse
/// its ranges. Takes the mutex.
void note_stream_end(Runtime& r, Stream* stream);

/// Record that the application waited for a stream, or for all streams of a context (null: the
/// current one): frees up to `ticket` have been passed. Return memory above the release thresholds
/// to the driver. They do nothing while the gate is closed. Both take the mutex.
void note_stream_waited(Runtime& r, Stream* stream, std::uint64_t ticket);
void note_context_waited(Runtime& r, Context* context, std::uint64_t ticket);
/// Polls all marks after the application waited for an event. Gate and mutex as above.
void note_event_waited(Runtime& r);

/// Record that all frees have been passed because all GPUs are idle, or remove the streams of a
/// destroyed `context`. The caller holds the mutex.
void note_all_passed(Runtime& r);
void forget_streams_of(Runtime& r, Context* context);

/// Releases empty stretches of a pool, after the driver has trimmed its own part, as long as at
/// least `bytes_to_keep` remain. Takes the mutex.
void trim_pool(Runtime& r, PoolHandle* handle, std::size_t bytes_to_keep);

/// Removes one empty stretch of any pool from the inventory; the caller unmaps and releases it.
/// Considers pools above their release thresholds, or `all`. Nullopt if there is none. The caller
/// holds the mutex.
std::optional<Mapping> remove_unused_stretch(Runtime& r, bool all);

}  // namespace gcr::preload
