// What the library needs of a GPU driver. One object for each runtime, made by its face; all calls
// go to the driver itself, never through the shims.
//
// Any thread, with and without the state's mutex: none of these takes it. None throws, and none
// calls malloc that does not have to. On failure nothing is left behind.
#pragma once

#include <span>
#include <string_view>

#include "preload/memory/types.h"

namespace gcr::preload {

class Driver {
 public:
  // Physical memory.

  /// Memory that a descriptor can own, on a device; reachable by RDMA if that is asked for.
  virtual Result create(Handle* handle, std::size_t size_bytes, int device, bool for_rdma) = 0;
  /// The same in the host's memory, near a device; `node` is where. Only if that can be.
  virtual bool can_create_on_host() = 0;
  virtual Result create_on_host(Handle* handle, std::size_t size_bytes, int device, int* node) = 0;
  /// The same as the application asked for it. Its `flags` are passed on.
  virtual Result create_as(Handle* handle, std::size_t size_bytes, const Asked& asked,
                           unsigned long long flags) = 0;
  virtual Result release(Handle handle) = 0;
  /// A new descriptor, which the caller closes.
  virtual Result export_descriptor(int* fd, Handle handle) = 0;
  /// The caller keeps `fd`.
  virtual Result import_descriptor(Handle* handle, int fd) = 0;
  /// Of memory that came from elsewhere.
  virtual Result properties_of(Handle handle, Asked* asked) = 0;

  // Addresses.

  virtual Result reserve(Address* address, std::size_t size_bytes, std::size_t alignment_bytes) = 0;
  virtual Result free_addresses(Address address, std::size_t size_bytes) = 0;
  virtual Result map(Address address, std::size_t size_bytes, std::size_t offset_bytes,
                     Handle handle) = 0;
  virtual Result unmap(Address address, std::size_t size_bytes) = 0;
  virtual Result set_access(Address address, std::size_t size_bytes,
                            std::span<const Access> accesses) = 0;

  // Devices.

  /// Everything but the pitch's alignment.
  virtual DeviceFacts facts(int device) = 0;
  /// Zeros if the driver does not say.
  virtual DeviceUuid uuid(int device) = 0;
  /// The pitch of a row of one element on the current device.
  virtual Result smallest_pitch(std::size_t* pitch_bytes) = 0;
  /// On the current device.
  virtual Result free_memory(std::size_t* free_bytes) = 0;
  /// What graphs have reserved on a device.
  virtual Result graph_memory(int device, std::uint64_t* bytes) = 0;

  // Contexts. A thread has a current one.

  /// Null if there is none.
  virtual Result current(Context** context) = 0;
  virtual Result current_device(int* device) = 0;
  /// Makes a context current; `previous` is for leave(), which undoes it.
  virtual Result enter(Context* context, Context** previous) = 0;
  virtual void leave(Context* previous) = 0;
  /// Waits until the current context has done all submitted work.
  virtual Result synchronize() = 0;
  /// Whether the driver moves this memory between host and devices by itself.
  virtual bool is_managed(Address address) = 0;
  /// Whether a device's primary context is alive; true if the driver does not say.
  virtual bool primary_is_active(int device) = 0;
  /// Of the current context. kNotSupported where lowering it would free nothing, or where setting
  /// it may wait for another of the driver's threads.
  virtual Result stack_limit(std::size_t* bytes) = 0;
  virtual Result set_stack_limit(std::size_t bytes) = 0;
  /// Runs a kernel in the current context, which is idle. The first launch after a limit was set
  /// waits for that, and what other streams do is put behind it: work that waits for the program,
  /// such as a host function, would then never end.
  virtual Result settle_stack_limit() = 0;

  // Streams and events.

  /// A number that no other stream of the process has or had, default streams of other threads and
  /// contexts included. The stream is not captured.
  virtual Result stream_number(Stream* stream, std::uint64_t* number) = 0;
  virtual Result stream_context(Stream* stream, Context** context, int* device) = 0;
  virtual Result is_capturing(Stream* stream, bool* capturing) = 0;
  /// Exchanges the calling thread's mode for captures; 2 is relaxed.
  virtual Result exchange_capture_mode(int* mode) = 0;
  /// For the current context; without times.
  virtual Result create_event(Event** event) = 0;
  virtual void destroy_event(Event* event) = 0;
  virtual Result record(Event* event, Stream* stream) = 0;
  /// kNotReady before the GPU has passed it.
  virtual Result query(Event* event) = 0;
  virtual Result wait_for(Stream* stream, Event* event) = 0;
  /// Enqueues, or does, a copy.
  virtual Result copy(Address to, Address from, std::size_t size_bytes) = 0;

  // Pools.

  virtual Result current_pool(int device, PoolHandle** pool) = 0;
  virtual Result default_pool(int device, PoolHandle** pool) = 0;
  virtual PoolBehaviour behaviour_of(PoolHandle* pool) = 0;

  // Checkpoints.

  /// Around a control checkpoint and its restore: at the end of a detach and of its attach. The
  /// process may be restored elsewhere in between.
  virtual void before_checkpoint() {}
  virtual void after_restore() {}

  // The child of a fork.

  /// From now on the application's calls go to the driver alone.
  virtual void take_all_calls() = 0;
  /// Paths of the driver's files begin so.
  virtual std::span<const std::string_view> files() = 0;

 protected:
  ~Driver() = default;
};

}  // namespace gcr::preload
