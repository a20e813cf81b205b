// An allocation first takes a range that its stream freed, or one that is free for all streams. If
// there is none, allocate_slowly() tries in this order: poll the marks and release passed ranges;
// add a stretch to the pool; make the stream wait for another stream's free; wait for the GPU. A
// free gets a ticket and, if several streams use the pool, a mark. Ranges are released for all
// streams lazily, when an allocation, a trim or a wait needs them.
#include "preload/memory/pools.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "preload/gate.h"
#include "preload/memory/backing.h"
#include "preload/memory/capture.h"
#include "preload/memory/contexts.h"
#include "preload/memory/room.h"

namespace gcr::preload {
namespace {

/// A pool grows by an eighth, within these bounds, or by what one allocation needs.
constexpr std::size_t kGrowth = 8;
constexpr std::size_t kSmallestStretchBytes = std::size_t{32} << 20;
constexpr std::size_t kLargestStretchBytes = std::size_t{512} << 20;
/// The most pending marks of a stream; further frees get no mark.
constexpr std::size_t kMostMarks = 4096;
/// From this number of marks on, every free polls the oldest ones.
constexpr std::size_t kManyMarks = 16;

/// Relaxes the thread's capture mode while it lives, so that driver calls neither fail because of a
/// capture nor invalidate one.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(Runtime& r)
      : r_(r), exchanged_(r.driver.exchange_capture_mode(&mode_) == Result::kSuccess) {}
  ~RelaxedCapture() {
    if (exchanged_) r_.driver.exchange_capture_mode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  static constexpr int kRelaxed = 2;

  Runtime& r_;
  int mode_ = kRelaxed;
  const bool exchanged_;
};

/// A stream argument of a call, resolved to its number: the names of default streams mean different
/// streams in different contexts and threads. The stream must not be captured: querying the number
/// would invalidate the capture.
struct NamedStream {
  NamedStream(Runtime& r, Stream* named)
      : handle(named), result(r.driver.stream_number(named, &number)) {}
  Stream* handle;
  std::uint64_t number = 0;
  Result result;
};

/// The record of a stream, created if necessary; null if the driver does not know its context. In
/// this file, callers hold the mutex unless a function says that it takes it.
PoolStream* record_of(Runtime& r, const NamedStream& stream) {
  if (const auto known = r.pools.streams.find(stream.number); known != r.pools.streams.end()) {
    return &known->second;
  }
  Context* context = nullptr;
  int device = -1;
  if (r.driver.stream_context(stream.handle, &context, &device) != Result::kSuccess) {
    return nullptr;
  }
  if (device < 0 || device >= kMaxDevices) return nullptr;
  note_context(r, context, device);
  PoolStream& record = r.pools.streams.try_emplace(stream.number, &r.pools.nodes).first->second;
  record.context = context;
  const bool has_own_name = stream.handle != nullptr && stream.handle != kLegacyStream &&
                            stream.handle != kPerThreadStream;
  if (has_own_name) record.handle = stream.handle;
  record.device = device;
  return &record;
}

/// Removes up to `most` marks that the GPU has passed, and records the last passed ticket.
void poll_marks(Runtime& r, PoolStream& stream, std::size_t most) {
  for (; most > 0 && !stream.marks.empty(); --most) {
    const PoolStream::Mark mark = stream.marks.front();
    if (r.driver.query(mark.event) != Result::kSuccess) return;
    stream.passed_ticket = std::max(stream.passed_ticket, mark.ticket);
    stream.spare_events.push_back(mark.event);
    stream.marks.pop_front();
  }
}

bool has_marks(const std::pair<const std::uint64_t, PoolStream>& entry) {
  return !entry.second.marks.empty();
}

void poll_all_marks(Runtime& r) {
  if (std::ranges::none_of(r.pools.streams, has_marks)) return;
  const RelaxedCapture relaxed(r);
  for (auto& [number, stream] : r.pools.streams) {
    poll_marks(r, stream, std::numeric_limits<std::size_t>::max());
  }
}

Event* new_event(Runtime& r, PoolStream& stream) {
  Event* event = nullptr;
  if (!stream.spare_events.empty()) {
    event = stream.spare_events.back();
    stream.spare_events.pop_back();
    return event;
  }
  const CurrentContext current(r, stream.context);
  if (current.result() != Result::kSuccess) return nullptr;
  return r.driver.create_event(&event) == Result::kSuccess ? event : nullptr;
}

/// Records an event behind the stream's last free, unless that is known to be passed. `exact`: no
/// other work was submitted to the stream since that free.
void mark(Runtime& r, PoolStream& stream, Stream* handle, bool exact) {
  const std::uint64_t known =
      stream.marks.empty() ? stream.passed_ticket : stream.marks.back().ticket;
  if (stream.last_ticket <= known) return;
  if (stream.marks.size() >= kManyMarks) {
    const RelaxedCapture relaxed(r);
    poll_marks(r, stream, 2);
  }
  if (stream.marks.size() >= kMostMarks) return;
  Event* const event = new_event(r, stream);
  if (event == nullptr) return;
  if (r.driver.record(event, handle) == Result::kSuccess) {
    stream.marks.push_back({stream.last_ticket, event, exact});
  } else {
    stream.spare_events.push_back(event);
  }
}

/// Releases the ranges of one pool that streams have passed for all streams.
void apply_passed(Runtime& r, Pool& pool) {
  for (const auto& [number, stream] : r.pools.streams) {
    pool.ranges.pass({number, stream.passed_ticket});
  }
}

/// Removes the records of destroyed streams that have passed all their frees.
void forget_destroyed_streams(Runtime& r) {
  std::erase_if(r.pools.streams, [&](const auto& entry) {
    const auto& [number, stream] = entry;
    if (!stream.destroyed || stream.passed_ticket < stream.last_ticket) return false;
    for (Pool& pool : r.pools.all) pool.ranges.pass({number, stream.passed_ticket});
    for (const PoolStream::Mark& left : stream.marks) r.driver.destroy_event(left.event);
    for (Event* const event : stream.spare_events) r.driver.destroy_event(event);
    return true;
  });
}

Pool* known_pool(Runtime& r, PoolHandle* handle) {
  if (handle == nullptr) return nullptr;
  for (Pool& pool : r.pools.all) {
    if (pool.handle == handle) return &pool;
  }
  return nullptr;
}

/// Adds a pool; returns the existing one if it is known. Takes the mutex.
Pool* add_pool(Runtime& r, PoolHandle* handle, int device, bool backed, std::size_t most_bytes) {
  const bool backs = backed && device_facts(r, device).can_back;
  const RelaxedCapture relaxed(r);
  const PoolBehaviour behaviour = r.driver.behaviour_of(handle);
  const std::lock_guard lock(r.mutex);
  if (Pool* known = known_pool(r, handle)) return known;
  Pool& pool = r.pools.all.emplace_back();
  pool.handle = handle;
  pool.device = device;
  pool.backed = backs;
  pool.most_bytes = most_bytes != 0 ? most_bytes : std::numeric_limits<std::size_t>::max();
  pool.accessors = std::uint64_t{1} << device;
  pool.behaviour = behaviour;
  return &pool;
}

/// The current pool of a device, cached; null on failure. Takes the mutex.
PoolHandle* current_pool(Runtime& r, int device) {
  PoolHandle* pool = nullptr;
  {
    const std::lock_guard lock(r.mutex);
    pool = r.pools.current[device];
  }
  if (pool != nullptr) return pool;
  if (r.driver.current_pool(device, &pool) != Result::kSuccess) return nullptr;
  const std::lock_guard lock(r.mutex);
  r.pools.current[device] = pool;
  return pool;
}

void note_use(Pool& pool, std::uint64_t stream) {
  if (pool.only_stream == 0) pool.only_stream = stream;
  if (pool.only_stream != stream) pool.several_streams = true;
}

void note_allocated(Runtime& r, Pool& pool, Address address, std::size_t requested_bytes) {
  r.inventory.add_pooled(address, requested_bytes);
  pool.used_bytes += PoolRanges::whole_units(requested_bytes);
  pool.most_used_bytes = std::max(pool.most_used_bytes, pool.used_bytes);
}

/// Allocates after a new check of which frees the GPU has passed; 0 if nothing fits.
Address allocate_passed(Runtime& r, Pool& pool, std::uint64_t stream, std::size_t size_bytes) {
  if (pool.behaviour.opportunistic) poll_all_marks(r);
  apply_passed(r, pool);
  const Address address = pool.ranges.allocate(stream, size_bytes);
  return address != 0 ? address : pool.ranges.allocate_joined(stream, size_bytes);
}

/// Allocates from a range that another stream freed, and makes `stream` wait for that free; 0 if
/// nothing fits. It needs an exact event of that free: later work of the other stream may wait for
/// `stream`.
Address allocate_after_event(Runtime& r, Pool& pool, const NamedStream& stream,
                             std::size_t size_bytes) {
  Event* event = nullptr;
  StreamPoint waited_for;
  const auto mark_of = [&](StreamPoint freed_at) -> Event* {
    const auto other = r.pools.streams.find(freed_at.stream);
    if (other == r.pools.streams.end()) return nullptr;
    const auto& marks = other->second.marks;
    const auto found =
        std::ranges::lower_bound(marks, freed_at.ticket, {}, &PoolStream::Mark::ticket);
    const bool is_its = found != marks.end() && found->ticket == freed_at.ticket;
    return is_its && found->exact ? found->event : nullptr;
  };
  const Address address = pool.ranges.allocate_from_others(size_bytes, [&](StreamPoint freed_at) {
    Event* const found = mark_of(freed_at);
    if (found == nullptr) return false;
    event = found;
    waited_for = freed_at;
    return true;
  });
  if (address == 0 || r.driver.wait_for(stream.handle, event) == Result::kSuccess) {
    return address;
  }
  pool.ranges.release(address, size_bytes, waited_for);
  return 0;
}

/// Adds a stretch to a pool, of the preferred size or, if memory is short, just large enough. Takes
/// the mutex.
bool grow(Runtime& r, PoolHandle* handle, std::size_t needed_bytes) {
  int device = 0;
  std::size_t wanted_bytes = 0, allowed_bytes = 0;
  {
    const std::lock_guard lock(r.mutex);
    const Pool* pool = known_pool(r, handle);
    if (pool == nullptr) return false;
    device = pool->device;
    allowed_bytes =
        pool->most_bytes - std::min<std::size_t>(pool->most_bytes, pool->reserved_bytes);
    wanted_bytes = std::clamp<std::size_t>(pool->reserved_bytes / kGrowth, kSmallestStretchBytes,
                                           kLargestStretchBytes);
  }
  Backing backing;
  wanted_bytes = std::max(wanted_bytes, needed_bytes);
  if (!(wanted_bytes <= allowed_bytes && make_backing(r, device, wanted_bytes, &backing)) &&
      !(needed_bytes <= allowed_bytes && make_backing(r, device, needed_bytes, &backing))) {
    return false;
  }
  std::unique_lock lock(r.mutex);
  Mapping& mapping = add_backing(r, device, backing);
  Pool* pool = known_pool(r, handle);
  if (pool == nullptr) {  // destroyed meanwhile
    const Mapping unused = r.inventory.remove_mapping(backing.address);
    lock.unlock();
    unmap_and_release(r, unused);
    return false;
  }
  mapping.pool = pool;
  apply_access(r, mapping);
  pool->ranges.add_stretch(backing.address, backing.size_bytes);
  pool->reserved_bytes += backing.size_bytes;
  pool->most_reserved_bytes = std::max(pool->most_reserved_bytes, pool->reserved_bytes);
  return true;
}

/// Waits, when memory has run out, until streams have passed their frees; for a limited time,
/// because they may wait for what the caller does next. Takes the mutex.
void wait_for_frees(Runtime& r, const NamedStream& caller) {
  constexpr std::chrono::milliseconds kMost{1000}, kPause{1};
  bool marked = false;
  for (auto left = kMost; left.count() > 0; left -= kPause) {
    {
      const std::lock_guard lock(r.mutex);
      if (!marked) {
        for (auto& [number, stream] : r.pools.streams) {
          Stream* const handle = number == caller.number ? caller.handle : stream.handle;
          const bool has_name = number == caller.number || handle != nullptr;
          if (has_name && !stream.destroyed && refuse_captured(r, handle) == Result::kSuccess) {
            mark(r, stream, handle, false);
          }
        }
      }
      poll_all_marks(r);
      if (std::ranges::none_of(r.pools.streams, has_marks)) return;
      marked = true;
    }
    std::this_thread::sleep_for(kPause);
  }
}

/// Allocates from a pool without a suitable free range: by passed frees, growth, waiting for
/// another stream, and finally waiting for the GPU. Takes the mutex.
Result allocate_slowly(Runtime& r, Address* address, std::size_t requested_bytes,
                       PoolHandle* handle, const NamedStream& stream) {
  const std::size_t size_bytes = PoolRanges::whole_units(requested_bytes);
  const std::lock_guard growing(r.growth);
  const RelaxedCapture relaxed(r);
  const auto take = [&](bool may_wait) -> std::optional<Result> {
    const std::lock_guard lock(r.mutex);
    Pool* pool = known_pool(r, handle);
    if (pool == nullptr) return Result::kInvalidValue;
    Address taken = allocate_passed(r, *pool, stream.number, size_bytes);
    if (taken == 0 && may_wait && pool->behaviour.internal_dependencies) {
      taken = allocate_after_event(r, *pool, stream, size_bytes);
    }
    if (taken == 0) return std::nullopt;
    note_allocated(r, *pool, taken, requested_bytes);
    *address = taken;
    return Result::kSuccess;
  };
  do {
    if (const auto done = take(false)) return *done;
  } while (grow(r, handle, size_bytes));
  if (const auto done = take(true)) return *done;
  wait_for_frees(r, stream);
  do {
    if (const auto done = take(true)) return *done;
  } while (grow(r, handle, size_bytes));
  return Result::kOutOfMemory;
}

std::optional<Mapping> remove_stretch_of(Runtime& r, Pool& pool, std::size_t bytes_to_keep) {
  if (pool.reserved_bytes <= bytes_to_keep) return std::nullopt;
  const Address address = pool.ranges.remove_free_stretch(pool.reserved_bytes - bytes_to_keep);
  if (address == 0) return std::nullopt;
  Mapping mapping = r.inventory.remove_mapping(address);
  pool.reserved_bytes -= mapping.size_bytes;
  if (pool.destroyed && !pool.ranges.has_stretches()) {
    std::erase_if(r.pools.all, [&](const Pool& other) { return &other == &pool; });
  }
  return mapping;
}

bool has_excess(const Pool& pool) {
  return pool.destroyed || pool.reserved_bytes > pool.behaviour.threshold_bytes;
}

/// Applies `note` after the application waited for something, and releases excess memory of pools.
/// Takes the mutex.
template <class Note>
void after_wait(Runtime& r, const Note& note) {
  if (gate::is_closed()) return;  // a thread that only waits must not block at the gate
  const GateScope inside;
  {
    const std::lock_guard lock(r.mutex);
    note();
    if (std::ranges::none_of(r.pools.all, has_excess)) return;
    poll_all_marks(r);
    for (Pool& pool : r.pools.all) {
      if (has_excess(pool)) apply_passed(r, pool);
    }
  }
  release_unused(r, false);
}

void note_passed(PoolStream& stream, std::uint64_t ticket) {
  stream.passed_ticket = std::max(stream.passed_ticket, ticket);
}

}  // namespace

Result refuse_captured(Runtime& r, Stream* stream) {
  if (r.captures.empty()) return Result::kSuccess;
  bool capturing = true;
  const Result result = r.driver.is_capturing(stream, &capturing);
  if (result != Result::kSuccess) return result;
  return capturing ? Result::kInvalidValue : Result::kSuccess;
}

std::optional<Result> allocate_in_order(Runtime& r, Address* address, std::size_t requested_bytes,
                                        PoolHandle* handle, Stream* named) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 2;
  if (address == nullptr || requested_bytes == 0 || requested_bytes > kMost) return std::nullopt;
  std::optional<NamedStream> stream;
  const bool current = handle == nullptr;
  int device = 0;
  for (bool again = false;; again = true) {
    {
      const std::lock_guard lock(r.mutex);
      if (refuse_captured(r, named) != Result::kSuccess) return std::nullopt;
      if (!stream.has_value()) stream.emplace(r, named);
      if (stream->result != Result::kSuccess) return std::nullopt;
      const PoolStream* record = record_of(r, *stream);
      if (record == nullptr) return std::nullopt;
      device = record->device;
      if (current && !again) handle = r.pools.current[device];
      if (Pool* pool = known_pool(r, handle)) {
        if (!pool->backed) return std::nullopt;
        note_use(*pool, stream->number);
        const Address taken =
            pool->ranges.allocate(stream->number, PoolRanges::whole_units(requested_bytes));
        if (taken == 0) break;
        note_allocated(r, *pool, taken, requested_bytes);
        *address = taken;
        return Result::kSuccess;
      }
    }
    if (current) handle = current_pool(r, device);
    if (again || handle == nullptr || pool_of(r, handle) == nullptr) return std::nullopt;
  }
  Result result = allocate_slowly(r, address, requested_bytes, handle, *stream);
  if (result == Result::kOutOfMemory && make_room(r, device, requested_bytes)) {
    result = allocate_slowly(r, address, requested_bytes, handle, *stream);
  }
  return result;
}

std::optional<Result> free_in_order(Runtime& r, Address address, Stream* named) {
  const std::lock_guard lock(r.mutex);
  const Mapping* mapping = r.inventory.find_mapping(address);
  if (mapping == nullptr || mapping->pool == nullptr) return std::nullopt;
  if (const Result captured = refuse_captured(r, named); captured != Result::kSuccess) {
    return captured;
  }
  const NamedStream stream(r, named);
  if (stream.result != Result::kSuccess) return stream.result;
  const Plain* plain = r.inventory.find_plain(address);
  if (plain == nullptr || plain->address != address) return Result::kInvalidValue;
  PoolStream* record = record_of(r, stream);
  if (record == nullptr) return Result::kInvalidHandle;
  Pool& pool = *mapping->pool;
  const std::size_t size_bytes = PoolRanges::whole_units(plain->requested_bytes);
  r.inventory.remove_pooled(address);
  pool.used_bytes -= size_bytes;
  note_use(pool, stream.number);
  record->last_ticket = ++r.pools.tickets;
  if (pool.several_streams) mark(r, *record, named, true);
  pool.ranges.release(address, size_bytes, {stream.number, record->last_ticket});
  return Result::kSuccess;
}

std::optional<Result> free_unused(Runtime& r, Address address) {
  const std::lock_guard lock(r.mutex);
  const Mapping* mapping = r.inventory.find_mapping(address);
  if (mapping == nullptr || mapping->pool == nullptr) return std::nullopt;
  const Plain* plain = r.inventory.find_plain(address);
  if (plain == nullptr || plain->address != address) return Result::kInvalidValue;
  const std::size_t size_bytes = PoolRanges::whole_units(plain->requested_bytes);
  r.inventory.remove_pooled(address);
  mapping->pool->used_bytes -= size_bytes;
  ++r.pools.tickets;
  mapping->pool->ranges.release(address, size_bytes, {});
  return Result::kSuccess;
}

Pool* pool_of(Runtime& r, PoolHandle* handle) {
  {
    const std::lock_guard lock(r.mutex);
    if (Pool* known = known_pool(r, handle)) return known;
  }
  PoolHandle* default_pool = nullptr;
  for (int device = 0; device < kMaxDevices; ++device) {
    if (r.driver.default_pool(device, &default_pool) != Result::kSuccess) break;
    if (default_pool == handle) return add_pool(r, handle, device, true, 0);
  }
  return nullptr;
}

void note_pool(Runtime& r, PoolHandle* handle, const PoolWanted& wanted) {
  if (wanted.device < 0 || wanted.device >= kMaxDevices) return;
  add_pool(r, handle, wanted.device, wanted.plain, wanted.most_bytes);
}

Result destroy_pool(Runtime& r, PoolHandle* handle, RealCall driver) {
  Pool* pool = nullptr;
  {
    const std::lock_guard lock(r.mutex);
    pool = known_pool(r, handle);
    // Before the driver's call: the driver may give the handle to a new pool at once.
    if (pool != nullptr) pool->handle = nullptr;
  }
  const Result result = driver();
  {
    const std::lock_guard lock(r.mutex);
    std::ranges::fill(r.pools.current, nullptr);
    if (pool == nullptr) return result;
    pool->destroyed = result == Result::kSuccess;
    if (!pool->destroyed) {
      pool->handle = handle;
      return result;
    }
    if (!pool->ranges.has_stretches()) {
      std::erase_if(r.pools.all, [&](const Pool& other) { return &other == pool; });
      return result;
    }
    poll_all_marks(r);
    apply_passed(r, *pool);
  }
  release_unused(r, false);
  return result;
}

Result set_pool_access(Runtime& r, PoolHandle* handle, std::size_t count,
                       FunctionRef<Access(std::size_t)> access_at) {
  Pool* const pool = pool_of(r, handle);
  if (pool == nullptr) return Result::kSuccess;
  const std::lock_guard lock(r.mutex);
  for (std::size_t i = 0; i < count; ++i) {
    const Access access = access_at(i);
    if (access.location_type != Access::kDevice || access.id < 0 || access.id >= kMaxDevices) {
      continue;
    }
    const std::uint64_t bit = std::uint64_t{1} << access.id;
    const bool may = access.rights != Rights::kNone;
    pool->accessors = may ? pool->accessors | bit : pool->accessors & ~bit;
  }
  for (auto& [address, mapping] : r.inventory.mappings()) {
    if (mapping.pool != pool) continue;
    if (const Result result = apply_access(r, mapping); result != Result::kSuccess) return result;
  }
  return Result::kSuccess;
}

void note_stream_end(Runtime& r, Stream* named) {
  if (r.pools.tickets.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(r.mutex);
  const auto found = std::ranges::find_if(r.pools.streams, [&](const auto& one) {
    return one.second.handle == named && !one.second.destroyed;
  });
  if (named == nullptr || found == r.pools.streams.end()) return;
  PoolStream& record = found->second;
  if (refuse_captured(r, named) == Result::kSuccess) mark(r, record, named, false);
  record.destroyed = true;
  poll_all_marks(r);
  forget_destroyed_streams(r);
}

void note_stream_waited(Runtime& r, Stream* named, std::uint64_t ticket) {
  const NamedStream stream(r, named);
  if (stream.result != Result::kSuccess) return;
  after_wait(r, [&] {
    const auto found = r.pools.streams.find(stream.number);
    if (found != r.pools.streams.end()) note_passed(found->second, ticket);
  });
}

void note_context_waited(Runtime& r, Context* context, std::uint64_t ticket) {
  if (context == nullptr) r.driver.current(&context);
  if (context == nullptr) return;
  after_wait(r, [&] {
    for (auto& [number, stream] : r.pools.streams) {
      if (stream.context == context) note_passed(stream, ticket);
    }
    forget_destroyed_streams(r);
  });
}

void note_event_waited(Runtime& r) {
  after_wait(r, [] {});
}

void note_all_passed(Runtime& r) {
  for (auto& [number, stream] : r.pools.streams) note_passed(stream, stream.last_ticket);
}

void forget_streams_of(Runtime& r, Context* context) {
  std::erase_if(r.pools.streams, [&](const auto& entry) {
    if (entry.second.context != context) return false;
    for (Pool& pool : r.pools.all) pool.ranges.pass({entry.first, entry.second.last_ticket});
    return true;
  });
}

void trim_pool(Runtime& r, PoolHandle* handle, std::size_t bytes_to_keep) {
  Pool* const pool = pool_of(r, handle);
  while (pool != nullptr) {
    std::optional<Mapping> stretch;
    {
      const std::lock_guard lock(r.mutex);
      if (any_capture(r)) return;
      poll_all_marks(r);
      apply_passed(r, *pool);
      stretch = remove_stretch_of(r, *pool, bytes_to_keep);
    }
    if (!stretch.has_value()) return;
    unmap_and_release(r, *stretch);
  }
}

std::optional<Mapping> remove_unused_stretch(Runtime& r, bool all) {
  if (all) poll_all_marks(r);
  for (Pool& pool : r.pools.all) {
    if (all) apply_passed(r, pool);
    const std::size_t kept_bytes = all || pool.destroyed ? 0 : pool.behaviour.threshold_bytes;
    if (auto stretch = remove_stretch_of(r, pool, kept_bytes)) return stretch;
  }
  return std::nullopt;
}

}  // namespace gcr::preload
