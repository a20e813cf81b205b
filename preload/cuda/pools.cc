#include "preload/cuda/pools.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "preload/cuda/backing.h"
#include "preload/cuda/capture.h"
#include "preload/cuda/contexts.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/room.h"
#include "preload/gate.h"

namespace gcr::preload {
namespace {

/// A pool grows by an eighth, within these bounds, or by what one allocation needs.
constexpr std::size_t kGrowth = 8;
constexpr std::size_t kSmallestStretchBytes = std::size_t{32} << 20;
constexpr std::size_t kLargestStretchBytes = std::size_t{512} << 20;
/// So many marks of a stream wait for the GPU; frees beyond them have none.
constexpr std::size_t kMostMarks = 4096;
/// From so many on, every free looks whether the oldest have been passed.
constexpr std::size_t kManyMarks = 16;

/// While it lives, captures of this thread and of others forbid nothing and are not harmed.
class RelaxedCapture {
 public:
  RelaxedCapture() : exchanged_(real::cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS) {}
  ~RelaxedCapture() {
    if (exchanged_) real::cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  const bool exchanged_;
};

/// A stream as a call names it: default streams are other ones in other contexts and threads. It
/// must not be captured: a capture ends in error when its stream is asked for its number.
struct NamedStream {
  explicit NamedStream(CUstream named) : handle(named) {
    unsigned long long id = 0;
    result = real::cuStreamGetId(handle, &id);
    number = id + 1;
  }
  CUstream handle;
  std::uint64_t number = 0;
  CUresult result;
};

/// The record of a stream, made if need be; null if the driver does not know its context. All
/// functions here hold the mutex already, unless they say otherwise.
PoolStream* record_of(ProcessState& s, const NamedStream& stream) {
  if (const auto known = s.pools.streams.find(stream.number); known != s.pools.streams.end()) {
    return &known->second;
  }
  CUcontext context = nullptr;
  CUdevice device = -1;
  if (real::cuStreamGetCtx(stream.handle, &context) != CUDA_SUCCESS) return nullptr;
  {
    const CurrentContext current(context);
    if (current.result() != CUDA_SUCCESS || real::cuCtxGetDevice(&device) != CUDA_SUCCESS) {
      return nullptr;
    }
  }
  if (device < 0 || device >= kMaxDevices) return nullptr;
  note_context(s, context, device);
  PoolStream& record = s.pools.streams.try_emplace(stream.number, &s.pools.nodes).first->second;
  record.context = context;
  const bool has_own_name = stream.handle != nullptr && stream.handle != CU_STREAM_LEGACY &&
                            stream.handle != CU_STREAM_PER_THREAD;
  if (has_own_name) record.handle = stream.handle;
  record.device = device;
  return &record;
}

/// Takes note of marks of a stream that the GPU has passed, of at most so many.
void look_at_marks(PoolStream& stream, std::size_t most) {
  for (; most > 0 && !stream.marks.empty(); --most) {
    const PoolStream::Mark mark = stream.marks.front();
    if (real::cuEventQuery(mark.event) != CUDA_SUCCESS) return;
    stream.passed_ticket = std::max(stream.passed_ticket, mark.ticket);
    stream.spare_events.push_back(mark.event);
    stream.marks.pop_front();
  }
}

bool has_marks(const std::pair<const std::uint64_t, PoolStream>& entry) {
  return !entry.second.marks.empty();
}

void look_at_all_marks(ProcessState& s) {
  if (std::ranges::none_of(s.pools.streams, has_marks)) return;
  const RelaxedCapture relaxed;
  for (auto& [number, stream] : s.pools.streams) {
    look_at_marks(stream, std::numeric_limits<std::size_t>::max());
  }
}

CUevent new_event(PoolStream& stream) {
  CUevent event = nullptr;
  if (!stream.spare_events.empty()) {
    event = stream.spare_events.back();
    stream.spare_events.pop_back();
    return event;
  }
  const CurrentContext current(stream.context);
  if (current.result() != CUDA_SUCCESS) return nullptr;
  return real::cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? event : nullptr;
}

/// Marks the stream's last free, if that is not known to be passed. `exact`: it has just been made.
void mark(PoolStream& stream, CUstream handle, bool exact) {
  const std::uint64_t known =
      stream.marks.empty() ? stream.passed_ticket : stream.marks.back().ticket;
  if (stream.last_ticket <= known) return;
  if (stream.marks.size() >= kManyMarks) {
    const RelaxedCapture relaxed;
    look_at_marks(stream, 2);
  }
  if (stream.marks.size() >= kMostMarks) return;
  const CUevent event = new_event(stream);
  if (event == nullptr) return;
  if (real::cuEventRecord(event, handle) == CUDA_SUCCESS) {
    stream.marks.push_back({stream.last_ticket, event, exact});
  } else {
    stream.spare_events.push_back(event);
  }
}

/// Everything that streams have passed becomes everybody's, in one pool.
void apply_passed(ProcessState& s, Pool& pool) {
  for (const auto& [number, stream] : s.pools.streams) {
    pool.ranges.pass({number, stream.passed_ticket});
  }
}

/// Forgets streams that were destroyed and have passed all their frees.
void forget_destroyed_streams(ProcessState& s) {
  std::erase_if(s.pools.streams, [&](const auto& entry) {
    const auto& [number, stream] = entry;
    if (!stream.destroyed || stream.passed_ticket < stream.last_ticket) return false;
    for (Pool& pool : s.pools.all) pool.ranges.pass({number, stream.passed_ticket});
    for (const PoolStream::Mark& left : stream.marks) real::cuEventDestroy_v2(left.event);
    for (const CUevent event : stream.spare_events) real::cuEventDestroy_v2(event);
    return true;
  });
}

Pool* known_pool(ProcessState& s, CUmemoryPool handle) {
  if (handle == nullptr) return nullptr;
  for (Pool& pool : s.pools.all) {
    if (pool.handle == handle) return &pool;
  }
  return nullptr;
}

template <class T>
T attribute_of(CUmemoryPool pool, CUmemPool_attribute attribute) {
  T value{};
  real::cuMemPoolGetAttribute(pool, attribute, &value);
  return value;
}

/// Takes the mutex.
Pool* add_pool(CUmemoryPool handle, int device, bool backed, std::size_t most_bytes) {
  ProcessState& s = state();
  const bool backs = backed && device_facts(device).can_back;
  const RelaxedCapture relaxed;
  const auto threshold = attribute_of<cuuint64_t>(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
  const int opportunistic = attribute_of<int>(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
  const int internal = attribute_of<int>(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
  const std::lock_guard lock(s.mutex);
  if (Pool* known = known_pool(s, handle)) return known;
  Pool& pool = s.pools.all.emplace_back();
  pool.handle = handle;
  pool.device = device;
  pool.backed = backs;
  pool.most_bytes = most_bytes != 0 ? most_bytes : std::numeric_limits<std::size_t>::max();
  pool.accessors = std::uint64_t{1} << device;
  pool.threshold_bytes = threshold;
  pool.opportunistic = opportunistic != 0;
  pool.internal_dependencies = internal != 0;
  return &pool;
}

/// Takes the mutex.
CUmemoryPool current_pool(int device) {
  ProcessState& s = state();
  CUmemoryPool pool = nullptr;
  {
    const std::lock_guard lock(s.mutex);
    pool = s.pools.current[device];
  }
  if (pool != nullptr) return pool;
  if (real::cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS) return nullptr;
  const std::lock_guard lock(s.mutex);
  s.pools.current[device] = pool;
  return pool;
}

void note_use(Pool& pool, std::uint64_t stream) {
  if (pool.only_stream == 0) pool.only_stream = stream;
  if (pool.only_stream != stream) pool.several_streams = true;
}

void note_taken(ProcessState& s, Pool& pool, CUdeviceptr address, std::size_t requested_bytes) {
  s.inventory.add_plain(address, requested_bytes);
  pool.used_bytes += PoolRanges::whole_units(requested_bytes);
  pool.most_used_bytes = std::max(pool.most_used_bytes, pool.used_bytes);
}

/// In ranges that were freed where the GPU is now known to have passed.
CUdeviceptr take_passed(ProcessState& s, Pool& pool, std::uint64_t stream, std::size_t size_bytes) {
  if (pool.opportunistic) look_at_all_marks(s);
  apply_passed(s, pool);
  const CUdeviceptr address = pool.ranges.take(stream, size_bytes);
  return address != 0 ? address : pool.ranges.take_joined(stream, size_bytes);
}

/// In a range that another stream freed, which `stream` has to wait for. Only an event that was
/// recorded with that very free will do: work behind it may itself wait for `stream`.
CUdeviceptr take_in_turn(ProcessState& s, Pool& pool, const NamedStream& stream,
                         std::size_t size_bytes) {
  CUevent event = nullptr;
  StreamPoint waited_for;
  const auto mark_of = [&](StreamPoint freed_at) -> CUevent {
    const auto other = s.pools.streams.find(freed_at.stream);
    if (other == s.pools.streams.end()) return nullptr;
    const auto& marks = other->second.marks;
    const auto found =
        std::ranges::lower_bound(marks, freed_at.ticket, {}, &PoolStream::Mark::ticket);
    const bool is_its = found != marks.end() && found->ticket == freed_at.ticket;
    return is_its && found->exact ? found->event : nullptr;
  };
  const CUdeviceptr address = pool.ranges.take_of_others(size_bytes, [&](StreamPoint freed_at) {
    const CUevent found = mark_of(freed_at);
    if (found == nullptr) return false;
    event = found;
    waited_for = freed_at;
    return true;
  });
  if (address == 0 || real::cuStreamWaitEvent(stream.handle, event, 0) == CUDA_SUCCESS) {
    return address;
  }
  pool.ranges.give_back(address, size_bytes, waited_for);
  return 0;
}

/// More memory for a pool: a stretch of the size that is due or, where memory is short, just
/// enough. Takes the mutex.
bool grow(CUmemoryPool handle, std::size_t needed_bytes) {
  ProcessState& s = state();
  int device = 0;
  std::size_t wanted_bytes = 0, allowed_bytes = 0;
  {
    const std::lock_guard lock(s.mutex);
    const Pool* pool = known_pool(s, handle);
    if (pool == nullptr) return false;
    device = pool->device;
    allowed_bytes =
        pool->most_bytes - std::min<std::size_t>(pool->most_bytes, pool->reserved_bytes);
    wanted_bytes = std::clamp<std::size_t>(pool->reserved_bytes / kGrowth, kSmallestStretchBytes,
                                           kLargestStretchBytes);
  }
  Backing backing;
  wanted_bytes = std::max(wanted_bytes, needed_bytes);
  if (!(wanted_bytes <= allowed_bytes && make_backing(device, wanted_bytes, &backing)) &&
      !(needed_bytes <= allowed_bytes && make_backing(device, needed_bytes, &backing))) {
    return false;
  }
  std::unique_lock lock(s.mutex);
  Mapping& mapping = add_backing(s, device, backing);
  Pool* pool = known_pool(s, handle);
  if (pool == nullptr) {  // destroyed meanwhile
    const Mapping unused = s.inventory.take_mapping(backing.address);
    lock.unlock();
    take_apart(unused);
    return false;
  }
  mapping.pool = pool;
  apply_access(s, mapping);
  pool->ranges.add_stretch(backing.address, backing.size_bytes);
  pool->reserved_bytes += backing.size_bytes;
  pool->most_reserved_bytes = std::max(pool->most_reserved_bytes, pool->reserved_bytes);
  return true;
}

/// Where memory has run out: waits until streams have passed what was freed in them, for a limited
/// time, because they may wait for what the caller does next. Takes the mutex.
void wait_for_frees(const NamedStream& caller) {
  constexpr std::chrono::milliseconds kMost{1000}, kPause{1};
  ProcessState& s = state();
  bool marked = false;
  for (auto left = kMost; left.count() > 0; left -= kPause) {
    {
      const std::lock_guard lock(s.mutex);
      if (!marked) {
        for (auto& [number, stream] : s.pools.streams) {
          const CUstream handle = number == caller.number ? caller.handle : stream.handle;
          const bool has_name = number == caller.number || handle != nullptr;
          if (has_name && !stream.destroyed && refuse_captured(s, handle) == CUDA_SUCCESS) {
            mark(stream, handle, false);
          }
        }
      }
      look_at_all_marks(s);
      if (std::ranges::none_of(s.pools.streams, has_marks)) return;
      marked = true;
    }
    std::this_thread::sleep_for(kPause);
  }
}

/// Out of a pool in which there was no room. Takes the mutex.
CUresult allocate_slowly(CUdeviceptr* address, std::size_t requested_bytes, CUmemoryPool handle,
                         const NamedStream& stream) {
  ProcessState& s = state();
  const std::size_t size_bytes = PoolRanges::whole_units(requested_bytes);
  const std::lock_guard growing(s.growth);
  const RelaxedCapture relaxed;
  const auto take = [&](bool in_turn) -> std::optional<CUresult> {
    const std::lock_guard lock(s.mutex);
    Pool* pool = known_pool(s, handle);
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr taken = take_passed(s, *pool, stream.number, size_bytes);
    if (taken == 0 && in_turn && pool->internal_dependencies) {
      taken = take_in_turn(s, *pool, stream, size_bytes);
    }
    if (taken == 0) return std::nullopt;
    note_taken(s, *pool, taken, requested_bytes);
    *address = taken;
    return CUDA_SUCCESS;
  };
  do {
    if (const auto done = take(false)) return *done;
  } while (grow(handle, size_bytes));
  if (const auto done = take(true)) return *done;
  wait_for_frees(stream);
  do {
    if (const auto done = take(true)) return *done;
  } while (grow(handle, size_bytes));
  return CUDA_ERROR_OUT_OF_MEMORY;
}

std::optional<Mapping> take_stretch_of(ProcessState& s, Pool& pool, std::size_t bytes_to_keep) {
  if (pool.reserved_bytes <= bytes_to_keep) return std::nullopt;
  const CUdeviceptr address = pool.ranges.remove_free_stretch(pool.reserved_bytes - bytes_to_keep);
  if (address == 0) return std::nullopt;
  Mapping mapping = s.inventory.take_mapping(address);
  pool.reserved_bytes -= mapping.size_bytes;
  if (pool.destroyed && !pool.ranges.has_stretches()) {
    std::erase_if(s.pools.all, [&](const Pool& other) { return &other == &pool; });
  }
  return mapping;
}

bool has_excess(const Pool& pool) {
  return pool.destroyed || pool.reserved_bytes > pool.threshold_bytes;
}

/// After the application waited for something. Takes the mutex.
template <class Note>
void after_wait(const Note& note) {
  if (gate::is_closed()) return;  // who only waits must be able to go on
  const GateScope inside;
  ProcessState& s = state();
  {
    const std::lock_guard lock(s.mutex);
    note(s);
    if (std::ranges::none_of(s.pools.all, has_excess)) return;
    look_at_all_marks(s);
    for (Pool& pool : s.pools.all) {
      if (has_excess(pool)) apply_passed(s, pool);
    }
  }
  release_unused(false);
}

void note_passed(PoolStream& stream, std::uint64_t ticket) {
  stream.passed_ticket = std::max(stream.passed_ticket, ticket);
}

}  // namespace

CUresult refuse_captured(ProcessState& s, CUstream stream) {
  if (s.captures.empty()) return CUDA_SUCCESS;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  const CUresult result = real::cuStreamIsCapturing(stream, &status);
  if (result != CUDA_SUCCESS) return result;
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

std::optional<CUresult> allocate_in_order(CUdeviceptr* address, std::size_t requested_bytes,
                                          CUmemoryPool handle, CUstream named) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 2;
  if (address == nullptr || requested_bytes == 0 || requested_bytes > kMost) return std::nullopt;
  ProcessState& s = state();
  std::optional<NamedStream> stream;
  const bool current = handle == nullptr;
  int device = 0;
  for (bool again = false;; again = true) {
    {
      const std::lock_guard lock(s.mutex);
      if (refuse_captured(s, named) != CUDA_SUCCESS) return std::nullopt;
      if (!stream.has_value()) stream.emplace(named);
      if (stream->result != CUDA_SUCCESS) return std::nullopt;
      const PoolStream* record = record_of(s, *stream);
      if (record == nullptr) return std::nullopt;
      device = record->device;
      if (current && !again) handle = s.pools.current[device];
      if (Pool* pool = known_pool(s, handle)) {
        if (!pool->backed) return std::nullopt;
        note_use(*pool, stream->number);
        const CUdeviceptr taken =
            pool->ranges.take(stream->number, PoolRanges::whole_units(requested_bytes));
        if (taken == 0) break;
        note_taken(s, *pool, taken, requested_bytes);
        *address = taken;
        return CUDA_SUCCESS;
      }
    }
    if (current) handle = current_pool(device);
    if (again || handle == nullptr || pool_of(handle) == nullptr) return std::nullopt;
  }
  CUresult result = allocate_slowly(address, requested_bytes, handle, *stream);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && make_room(device, requested_bytes)) {
    result = allocate_slowly(address, requested_bytes, handle, *stream);
  }
  return result;
}

std::optional<CUresult> free_in_order(CUdeviceptr address, CUstream named) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  const Mapping* mapping = s.inventory.find_mapping(address);
  if (mapping == nullptr || mapping->pool == nullptr) return std::nullopt;
  if (const CUresult captured = refuse_captured(s, named); captured != CUDA_SUCCESS) {
    return captured;
  }
  const NamedStream stream(named);
  if (stream.result != CUDA_SUCCESS) return stream.result;
  const Plain* plain = s.inventory.find_plain(address);
  if (plain == nullptr || plain->address != address) return CUDA_ERROR_INVALID_VALUE;
  PoolStream* record = record_of(s, stream);
  if (record == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Pool& pool = *mapping->pool;
  const std::size_t size_bytes = PoolRanges::whole_units(plain->requested_bytes);
  s.inventory.remove_plain(address);
  pool.used_bytes -= size_bytes;
  note_use(pool, stream.number);
  record->last_ticket = ++s.pools.tickets;
  if (pool.several_streams) mark(*record, named, true);
  pool.ranges.give_back(address, size_bytes, {stream.number, record->last_ticket});
  return CUDA_SUCCESS;
}

std::optional<CUresult> free_unused(CUdeviceptr address) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  const Mapping* mapping = s.inventory.find_mapping(address);
  if (mapping == nullptr || mapping->pool == nullptr) return std::nullopt;
  const Plain* plain = s.inventory.find_plain(address);
  if (plain == nullptr || plain->address != address) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t size_bytes = PoolRanges::whole_units(plain->requested_bytes);
  s.inventory.remove_plain(address);
  mapping->pool->used_bytes -= size_bytes;
  ++s.pools.tickets;
  mapping->pool->ranges.give_back(address, size_bytes, {});
  return CUDA_SUCCESS;
}

Pool* pool_of(CUmemoryPool handle) {
  {
    ProcessState& s = state();
    const std::lock_guard lock(s.mutex);
    if (Pool* known = known_pool(s, handle)) return known;
  }
  CUmemoryPool default_pool = nullptr;
  for (int device = 0; device < kMaxDevices; ++device) {
    if (real::cuDeviceGetDefaultMemPool(&default_pool, device) != CUDA_SUCCESS) break;
    if (default_pool == handle) return add_pool(handle, device, true, 0);
  }
  return nullptr;
}

void note_pool(CUmemoryPool handle, const CUmemPoolProps& properties) {
  const int device = properties.location.id;
  const bool on_device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && device >= 0 &&
                         device < kMaxDevices;
  add_pool(handle, on_device ? device : 0,
           on_device && properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
               properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties.usage == 0,
           properties.maxSize);
}

Pool* forget_pool(CUmemoryPool handle) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  Pool* known = known_pool(s, handle);
  if (known != nullptr) known->handle = nullptr;
  return known;
}

void end_pool(Pool& pool, CUmemoryPool handle) {
  ProcessState& s = state();
  {
    const std::lock_guard lock(s.mutex);
    pool.handle = handle;
    if (handle != nullptr) return;
    pool.destroyed = true;
    if (!pool.ranges.has_stretches()) {
      std::erase_if(s.pools.all, [&](const Pool& other) { return &other == &pool; });
      return;
    }
    look_at_all_marks(s);
    apply_passed(s, pool);
  }
  release_unused(false);
}

CUresult set_access(Pool& pool, std::span<const CUmemAccessDesc> accesses) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  for (const CUmemAccessDesc& access : accesses) {
    const int device = access.location.id;
    if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 ||
        device >= kMaxDevices) {
      continue;
    }
    const std::uint64_t bit = std::uint64_t{1} << device;
    const bool may = access.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    pool.accessors = may ? pool.accessors | bit : pool.accessors & ~bit;
  }
  for (auto& [address, mapping] : s.inventory.mappings()) {
    if (mapping.pool != &pool) continue;
    if (const CUresult result = apply_access(s, mapping); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void note_stream_end(CUstream named) {
  ProcessState& s = state();
  if (s.pools.tickets.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(s.mutex);
  const auto found = std::ranges::find_if(s.pools.streams, [&](const auto& one) {
    return one.second.handle == named && !one.second.destroyed;
  });
  if (named == nullptr || found == s.pools.streams.end()) return;
  PoolStream& record = found->second;
  if (refuse_captured(s, named) == CUDA_SUCCESS) mark(record, named, false);
  record.destroyed = true;
  look_at_all_marks(s);
  forget_destroyed_streams(s);
}

void note_stream_waited(CUstream named, std::uint64_t ticket) {
  const NamedStream stream(named);
  if (stream.result != CUDA_SUCCESS) return;
  after_wait([&](ProcessState& s) {
    const auto found = s.pools.streams.find(stream.number);
    if (found != s.pools.streams.end()) note_passed(found->second, ticket);
  });
}

void note_context_waited(std::uint64_t ticket) {
  CUcontext context = nullptr;
  if (real::cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return;
  after_wait([&](ProcessState& s) {
    for (auto& [number, stream] : s.pools.streams) {
      if (stream.context == context) note_passed(stream, ticket);
    }
    forget_destroyed_streams(s);
  });
}

void note_event_waited() {
  after_wait([](ProcessState&) {});
}

void note_all_passed(ProcessState& s) {
  for (auto& [number, stream] : s.pools.streams) note_passed(stream, stream.last_ticket);
}

void forget_streams_of(ProcessState& s, CUcontext context) {
  std::erase_if(s.pools.streams, [&](const auto& entry) {
    if (entry.second.context != context) return false;
    for (Pool& pool : s.pools.all) pool.ranges.pass({entry.first, entry.second.last_ticket});
    return true;
  });
}

void trim(Pool& pool, std::size_t bytes_to_keep) {
  ProcessState& s = state();
  for (;;) {
    std::optional<Mapping> stretch;
    {
      const std::lock_guard lock(s.mutex);
      if (any_capture(s)) return;
      look_at_all_marks(s);
      apply_passed(s, pool);
      stretch = take_stretch_of(s, pool, bytes_to_keep);
    }
    if (!stretch.has_value()) return;
    take_apart(*stretch);
  }
}

std::optional<Mapping> take_unused_stretch(ProcessState& s, bool all) {
  if (all) look_at_all_marks(s);
  for (Pool& pool : s.pools.all) {
    if (all) apply_passed(s, pool);
    const std::size_t kept_bytes = all || pool.destroyed ? 0 : pool.threshold_bytes;
    if (auto stretch = take_stretch_of(s, pool, kept_bytes)) return stretch;
  }
  return std::nullopt;
}

}  // namespace gcr::preload
