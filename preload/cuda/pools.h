// Stream-ordered memory (decision 1): the driver's pools keep their identity and attributes, and
// their memory is the library's. Pools that can be exported, pools on the host, and allocations of
// graphs stay the driver's wholly.
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
#include <span>
#include <vector>

#include "preload/cuda/inventory.h"
#include "preload/cuda/pool_ranges.h"

namespace gcr::preload {

struct ProcessState;

/// One of the driver's pools, as long as it exists or anything allocated from it does.
struct Pool {
  CUmemoryPool handle = nullptr;  ///< null: destroyed
  int device = 0;
  bool backed = false;  ///< false: the driver's wholly; nothing below is used
  std::size_t most_bytes = 0;
  std::uint64_t accessors = 0;  ///< devices that may use it, as bits
  cuuint64_t threshold_bytes = 0;
  bool opportunistic = false;
  bool internal_dependencies = false;
  std::uint64_t only_stream = 0;  ///< the one stream that has used it; 0: none yet
  bool several_streams = false;
  PoolRanges ranges;
  std::uint64_t reserved_bytes = 0, most_reserved_bytes = 0;
  std::uint64_t used_bytes = 0, most_used_bytes = 0;
};

/// A stream that frees were ordered in. The driver never uses its number twice.
struct PoolStream {
  /// An event that was recorded right behind the free of that ticket.
  struct Mark {
    std::uint64_t ticket;
    CUevent event;
  };

  explicit PoolStream(std::pmr::memory_resource* nodes) : marks(nodes) {}

  CUcontext context = nullptr;
  int device = 0;
  std::uint64_t last_ticket = 0;    ///< of its frees
  std::uint64_t passed_ticket = 0;  ///< the GPU has passed all frees up to it
  std::pmr::deque<Mark> marks;      ///< not known to be passed, in their order
  std::vector<CUevent> spare_events;
  bool destroyed = false;
};

struct Pools {
  std::pmr::unsynchronized_pool_resource nodes;
  std::list<Pool> all;
  std::map<std::uint64_t, PoolStream> streams;  ///< by the driver's number plus 1
  CUmemoryPool current[kMaxDevices] = {};       ///< null: to be asked for
  std::atomic<std::uint64_t> tickets{0};        ///< all frees so far, in all pools
  std::uint64_t graph_bytes = 0;                ///< what graphs had reserved when last asked
};

/// Whether `stream` is being captured: CUDA_SUCCESS if not, else what a call that is not allowed
/// then answers. Holds the mutex already.
CUresult refuse_captured(ProcessState& state, CUstream stream);

/// Memory of `pool`, null for the current one of the stream's device, for work of `stream` from now
/// on. Nothing: the driver should be asked. Takes the mutex.
std::optional<CUresult> allocate_in_order(CUdeviceptr* address, std::size_t requested_bytes,
                                          CUmemoryPool pool, CUstream stream);

/// Frees what allocate_in_order gave, behind the work of `stream`. Nothing: `address` is in no
/// pool. Takes the mutex.
std::optional<CUresult> free_in_order(CUdeviceptr address, CUstream stream);

/// The same for memory that the GPU does not use any more.
std::optional<CUresult> free_unused(CUdeviceptr address);

/// The pool of that handle, learnt from the driver if need be; null if it cannot be. Takes the
/// mutex; what is returned lives as long as the driver's pool.
Pool* pool_of(CUmemoryPool handle);

/// Remembers a pool that was created. Takes the mutex.
void note_pool(CUmemoryPool handle, const CUmemPoolProps& properties);

/// Around the destruction of a pool by the driver: the library's, which has no handle meanwhile
/// (null if it knows none); and its end, where `handle` is null, or its going on under its handle.
/// What is still allocated from it stays. Takes the mutex.
Pool* forget_pool(CUmemoryPool handle);
void end_pool(Pool& pool, CUmemoryPool handle);

/// Changes which devices may use the memory of a pool. Takes the mutex.
CUresult set_access(Pool& pool, std::span<const CUmemAccessDesc> accesses);

/// Before a stream is destroyed: what was freed in it has to become everybody's. Takes the mutex.
void note_stream_end(CUstream stream);

/// After the application waited: all of these frees have been passed, in one stream or in all
/// streams of the current context. Memory over the release thresholds goes back to the driver.
/// Nothing while the gate is closed. Takes the mutex.
void note_stream_waited(CUstream stream, std::uint64_t ticket);
void note_context_waited(std::uint64_t ticket);
/// The application waited for an event: what else is over by now is found out.
void note_event_waited();

/// All GPUs are idle, or `context` is gone. Holds the mutex already.
void note_all_passed(ProcessState& state);
void forget_streams_of(ProcessState& state, CUcontext context);

/// Gives back stretches of `pool` in which nothing is left and that are not needed to keep so many
/// bytes. Takes the mutex.
void trim(Pool& pool, std::size_t bytes_to_keep);

/// One such stretch of any pool, out of the inventory, for the caller to take apart; none if there
/// is no more. Beyond the thresholds, or `all`. Holds the mutex already.
std::optional<Mapping> take_unused_stretch(ProcessState& state, bool all);

}  // namespace gcr::preload
