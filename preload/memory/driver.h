// The interface to a GPU driver. Each runtime's face has one implementation; all calls go to the
// driver itself, never through the shims.
//
// Any thread may call, with or without Runtime::mutex: no method takes it. No method throws, and
// none calls malloc unless it must. A failed call leaves nothing behind.
#pragma once

#include <span>
#include <string_view>

#include "preload/memory/types.h"

namespace gcr::preload {

class Driver {
 public:
  // ---- Physical memory ----

  /// Creates memory on a device that a descriptor can own; RDMA can reach it if `for_rdma`.
  virtual Result create(Handle* handle, std::size_t size_bytes, int device, bool for_rdma) = 0;
  /// Creates memory on the host, near a device; `node` is its NUMA node. Only if
  /// can_create_on_host().
  virtual bool can_create_on_host() = 0;
  virtual Result create_on_host(Handle* handle, std::size_t size_bytes, int device, int* node) = 0;
  /// Creates memory with the properties that the application requested, and its `flags`.
  virtual Result create_as(Handle* handle, std::size_t size_bytes, const Asked& asked,
                           unsigned long long flags) = 0;
  virtual Result release(Handle handle) = 0;
  /// Exports a new descriptor, which the caller closes.
  virtual Result export_descriptor(int* fd, Handle handle) = 0;
  /// Imports memory from `fd`, which the caller keeps.
  virtual Result import_descriptor(Handle* handle, int fd) = 0;
  /// Reads the properties of imported memory.
  virtual Result properties_of(Handle handle, Asked* asked) = 0;

  // ---- Addresses ----

  virtual Result reserve(Address* address, std::size_t size_bytes, std::size_t alignment_bytes) = 0;
  virtual Result free_addresses(Address address, std::size_t size_bytes) = 0;
  virtual Result map(Address address, std::size_t size_bytes, std::size_t offset_bytes,
                     Handle handle) = 0;
  virtual Result unmap(Address address, std::size_t size_bytes) = 0;
  virtual Result set_access(Address address, std::size_t size_bytes,
                            std::span<const Access> accesses) = 0;

  // ---- Devices ----

  /// All facts except the alignment of pitches.
  virtual DeviceFacts facts(int device) = 0;
  /// The UUID of the GPU; zeros if it is unknown.
  virtual DeviceUuid uuid(int device) = 0;
  /// The pitch of a row of one element on the current device.
  virtual Result smallest_pitch(std::size_t* pitch_bytes) = 0;
  /// Free memory of the current device.
  virtual Result free_memory(std::size_t* free_bytes) = 0;
  /// Bytes that graphs have reserved on a device.
  virtual Result graph_memory(int device, std::uint64_t* bytes) = 0;

  // ---- Contexts; each thread has a current one ----

  /// The current context; null if there is none.
  virtual Result current(Context** context) = 0;
  virtual Result current_device(int* device) = 0;
  /// Makes a context current; `previous` is the argument for leave(), which undoes it.
  virtual Result enter(Context* context, Context** previous) = 0;
  virtual void leave(Context* previous) = 0;
  /// Waits until the current context has finished all submitted work.
  virtual Result synchronize() = 0;
  /// Whether this is managed memory, which the driver moves between host and devices.
  virtual bool is_managed(Address address) = 0;
  /// Whether a device's primary context is active; true if that is unknown.
  virtual bool primary_is_active(int device) = 0;
  /// The stack limit of the current context. kNotSupported if lowering it would free nothing, or if
  /// setting it might wait for another thread of the driver.
  virtual Result stack_limit(std::size_t* bytes) = 0;
  virtual Result set_stack_limit(std::size_t bytes) = 0;
  /// Runs a kernel in the current context, which is idle, to apply a new stack limit. Otherwise the
  /// program's first launch would apply it, and work of other streams would be queued behind that
  /// launch; work that waits for the program, such as a host function, would then never end.
  virtual Result settle_stack_limit() = 0;

  // ---- Streams and events ----

  /// A number that no other stream of the process has or had; default streams differ by thread and
  /// context. The stream must not be captured.
  virtual Result stream_number(Stream* stream, std::uint64_t* number) = 0;
  virtual Result stream_context(Stream* stream, Context** context, int* device) = 0;
  virtual Result is_capturing(Stream* stream, bool* capturing) = 0;
  /// Exchanges the calling thread's capture mode; 2 is relaxed.
  virtual Result exchange_capture_mode(int* mode) = 0;
  /// Creates an event without timing in the current context.
  virtual Result create_event(Event** event) = 0;
  virtual void destroy_event(Event* event) = 0;
  virtual Result record(Event* event, Stream* stream) = 0;
  /// kNotReady until the GPU has passed the event.
  virtual Result query(Event* event) = 0;
  virtual Result wait_for(Stream* stream, Event* event) = 0;
  /// Copies; may return before the copy is done.
  virtual Result copy(Address to, Address from, std::size_t size_bytes) = 0;

  // ---- Pools ----

  virtual Result current_pool(int device, PoolHandle** pool) = 0;
  virtual Result default_pool(int device, PoolHandle** pool) = 0;
  virtual PoolBehaviour behaviour_of(PoolHandle* pool) = 0;

  // ---- Checkpoints ----

  /// Called at the end of a detach, before a control checkpoint; after_restore() is called at the
  /// end of the attach. The process may be restored on another host in between.
  virtual void before_checkpoint() {}
  virtual void after_restore() {}

  // ---- The child of a fork ----

  /// Passes all later calls of the application to the driver only.
  virtual void pass_all_calls() = 0;
  /// Prefixes of the paths of the driver's files.
  virtual std::span<const std::string_view> files() = 0;

 protected:
  ~Driver() = default;

  /// Gets one of the driver's objects by `call`, null if that fails.
  template <class Theirs, class Ours, class Call>
  static Result get(Ours** object, const Call& call) {
    Theirs own = nullptr;
    const Result result = static_cast<Result>(call(&own));
    *object = reinterpret_cast<Ours*>(own);
    return result;
  }
};

}  // namespace gcr::preload
