// Stream-ordered memory (decision 1): the driver's pools keep their identity and attributes, and
// their memory is the library's. Pools that can be exported, pools on the host or of managed
// memory, and allocations of graphs stay the driver's wholly.
//
// Reuse: at once in the stream that freed a range; elsewhere when the GPU is known to have passed
// the free, by an event that was recorded with it or by a synchronisation. A pool grows before it
// makes one stream wait for another, as CUDA's documentation says of
// CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES. Dependencies that the application made by
// events of its own are not followed (CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES): where the
// driver would use a range again because of one, the pool grows.
//
// A pool that one stream alone uses records no events.
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

/// One of the driver's pools, as long as it exists or anything allocated from it does.
struct Pool {
  PoolHandle* handle = nullptr;  ///< null while it is destroyed, and then
  bool destroyed = false;
  int device = 0;
  bool backed = false;  ///< false: the driver's wholly; nothing below is used
  std::size_t most_bytes = 0;
  std::uint64_t accessors = 0;  ///< devices that may use it, as bits
  PoolBehaviour behaviour;
  std::uint64_t only_stream = 0;  ///< the one stream that has used it; 0: none yet
  bool several_streams = false;
  PoolRanges ranges;
  std::uint64_t reserved_bytes = 0, most_reserved_bytes = 0;
  std::uint64_t used_bytes = 0, most_used_bytes = 0;
};

/// A stream that frees were ordered in. The driver never uses its number twice.
struct PoolStream {
  /// An event behind the free of that ticket; with nothing in between if it is exact.
  struct Mark {
    std::uint64_t ticket;
    Event* event;
    bool exact;
  };

  explicit PoolStream(std::pmr::memory_resource* nodes) : marks(nodes) {}

  Context* context = nullptr;
  Stream* handle = nullptr;  ///< null for default streams, which have different names
  int device = 0;
  std::uint64_t last_ticket = 0;    ///< of its frees
  std::uint64_t passed_ticket = 0;  ///< the GPU has passed all frees up to it
  std::pmr::deque<Mark> marks;      ///< not known to be passed, in their order
  std::vector<Event*> spare_events;
  bool destroyed = false;
};

struct Pools {
  std::pmr::unsynchronized_pool_resource nodes;
  std::list<Pool> all;
  std::map<std::uint64_t, PoolStream> streams;  ///< by their numbers
  PoolHandle* current[kMaxDevices] = {};        ///< null: to be asked for
  std::atomic<std::uint64_t> tickets{0};        ///< all frees so far, in all pools
  bool any_graph_memory = false;                ///< a graph has been made to allocate
  std::uint64_t graph_bytes = 0;                ///< what graphs had reserved when last asked
};

/// Whether `stream` is being captured: Result::kSuccess if not, else what a call that is not
/// allowed then answers. Holds the mutex already.
Result refuse_captured(Runtime& r, Stream* stream);

/// Memory of `pool`, null for the current one of the stream's device, for work of `stream` from now
/// on. Nothing: the driver should be asked. Takes the mutex.
std::optional<Result> allocate_in_order(Runtime& r, Address* address, std::size_t requested_bytes,
                                        PoolHandle* pool, Stream* stream);

/// Frees what allocate_in_order gave, behind the work of `stream`. Nothing: `address` is in no
/// pool. Takes the mutex.
std::optional<Result> free_in_order(Runtime& r, Address address, Stream* stream);

/// The same for memory that the GPU does not use any more.
std::optional<Result> free_unused(Runtime& r, Address address);

/// The pool of that handle, learnt from the driver if need be; null if it cannot be. Takes the
/// mutex; what is returned lives as long as the driver's pool.
Pool* pool_of(Runtime& r, PoolHandle* handle);

/// What the application asked of a pool.
struct PoolWanted {
  int device = -1;             ///< -1: on none, or managed
  bool plain = false;          ///< nothing special: the library can back it
  std::size_t most_bytes = 0;  ///< 0: no limit
};

/// Remembers a pool that was created, if its memory is a device's. Takes the mutex.
void note_pool(Runtime& r, PoolHandle* handle, const PoolWanted& wanted);

/// Around the destruction of a pool by the driver: the library's, which has no handle meanwhile
/// (null if it knows none); and its end, where `handle` is null, or its going on under its handle.
/// What is still allocated from it stays. Takes the mutex.
Pool* forget_pool(Runtime& r, PoolHandle* handle);
void end_pool(Runtime& r, Pool& pool, PoolHandle* handle);

/// Changes which devices may use the memory of a pool. Takes the mutex.
Result set_access(Runtime& r, Pool& pool, std::size_t count,
                  FunctionRef<Access(std::size_t)> access_at);

/// Before a stream is destroyed: what was freed in it has to become everybody's. Takes the mutex.
void note_stream_end(Runtime& r, Stream* stream);

/// After the application waited: all of these frees have been passed, in one stream or in all
/// streams of a context (null: the current one). Memory over the release thresholds goes back to
/// the driver. Nothing while the gate is closed. Takes the mutex.
void note_stream_waited(Runtime& r, Stream* stream, std::uint64_t ticket);
void note_context_waited(Runtime& r, Context* context, std::uint64_t ticket);
/// The application waited for an event: what else is over by now is found out.
void note_event_waited(Runtime& r);

/// All GPUs are idle, or `context` is gone. Holds the mutex already.
void note_all_passed(Runtime& r);
void forget_streams_of(Runtime& r, Context* context);

/// Gives back stretches of `pool` in which nothing is left and that are not needed to keep so many
/// bytes. Takes the mutex.
void trim(Runtime& r, Pool& pool, std::size_t bytes_to_keep);

/// One such stretch of any pool, out of the inventory, for the caller to take apart; none if there
/// is no more. Beyond the thresholds, or `all`. Holds the mutex already.
std::optional<Mapping> take_unused_stretch(Runtime& r, bool all);

}  // namespace gcr::preload
