#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "src/base/descriptor_passing.h"
#include "tests/softgpu/subject.h"

namespace gcr::softgpu::test {
namespace {

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

CUresult current(Subject& s) { return s.cu.cuCtxSetCurrent(s.contexts.at(s.next<std::size_t>())); }

CUresult devices(Subject& s) {
  int count = 0;
  const CUresult result = s.cu.cuDeviceGetCount(&count);
  s.say(count);
  return result;
}

CUresult can_access(Subject& s) {
  int can = -1;
  const int device = s.next<int>();
  const CUresult result = s.cu.cuDeviceCanAccessPeer(&can, device, s.next<int>());
  s.say(can);
  return result;
}

CUresult p2p_access(Subject& s) {
  int supported = -1;
  const int device = s.next<int>();
  const CUresult result = s.cu.cuDeviceGetP2PAttribute(
      &supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, device, s.next<int>());
  s.say(supported);
  return result;
}

/// CONTEXT FLAGS
CUresult enable_peer(Subject& s) {
  CUcontext peer = s.contexts.at(s.next<std::size_t>());
  return s.cu.cuCtxEnablePeerAccess(peer, s.next<unsigned>());
}

CUresult disable_peer(Subject& s) {
  return s.cu.cuCtxDisablePeerAccess(s.contexts.at(s.next<std::size_t>()));
}

CUmemLocation numa_node(Subject& s, int device) {
  int node = 0;
  s.cu.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device);
  return {CU_MEM_LOCATION_TYPE_HOST_NUMA, std::max(node, 0)};
}

CUresult allow_cpu(Subject& s, const Buffer& buffer, int device) {
  const CUmemAccessDesc access{numa_node(s, device), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return s.cu.cuMemSetAccess(buffer.address, buffer.bytes, &access, 1);
}

/// BYTES DEVICE: memory of the host, with access for the device and the CPU.
CUresult numa(Subject& s) {
  Buffer buffer;
  buffer.bytes = s.next<std::size_t>();
  const int device = s.next<int>();
  if (const CUresult result = s.create(&buffer, numa_node(s, device))) return result;
  if (const CUresult result = s.map(&buffer, device)) return result;
  return s.keep(allow_cpu(s, buffer, device), buffer);
}

CUresult allow_cpu(Subject& s) {
  const Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  return allow_cpu(s, buffer, s.next<int>());
}

/// BYTES EXPORTABLE: memory of the host, at any location.
CUresult host(Subject& s) {
  Buffer buffer;
  buffer.bytes = s.next<std::size_t>();
  const auto types =
      s.next<int>() != 0 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  return s.keep(s.create(&buffer, {CU_MEM_LOCATION_TYPE_HOST, 0}, types), buffer);
}

CUmemLocation location(Subject& s) {
  const int device = s.next<int>();
  if (device >= 0) return {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return {CU_MEM_LOCATION_TYPE_HOST, 0};
}

/// BUFFER DEVICE FLAGS [DEVICE FLAGS]: in one call.
CUresult access(Subject& s) {
  const Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  std::vector<CUmemAccessDesc> accesses;
  do {
    CUmemAccessDesc access{location(s), {}};
    access.flags = static_cast<CUmemAccess_flags>(s.next<int>());
    accesses.push_back(access);
  } while (!s.in.eof());
  return s.cu.cuMemSetAccess(buffer.address, buffer.bytes, accesses.data(), accesses.size());
}

CUresult get_access(Subject& s) {
  const Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  const CUmemLocation of = location(s);
  unsigned long long flags = 0;
  const CUresult result = s.cu.cuMemGetAccess(&flags, &of, buffer.address);
  s.say(flags);
  return result;
}

CUresult properties(Subject& s) {
  CUmemAllocationProp properties{};
  const CUresult result = s.cu.cuMemGetAllocationPropertiesFromHandle(
      &properties, s.buffers.at(s.next<std::size_t>()).handle);
  s.say(static_cast<int>(properties.location.type));
  return result;
}

/// A second handle of the mapped memory.
CUresult retain(Subject& s) {
  Buffer buffer = s.buffers.at(s.next<std::size_t>());
  const CUresult result = s.cu.cuMemRetainAllocationHandle(
      &buffer.handle, reinterpret_cast<void*>(buffer.address + buffer.bytes / 2));
  return s.keep(result, buffer);
}

CUresult unmap(Subject& s) {
  const Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  return s.cu.cuMemUnmap(buffer.address, buffer.bytes);
}

CUresult map_again(Subject& s) {
  Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  return s.map(&buffer, s.next<int>());
}

CUresult release_handle(Subject& s) {
  return s.cu.cuMemRelease(s.buffers.at(s.next<std::size_t>()).handle);
}

/// Keeps only a descriptor of exported memory.
CUresult take(Subject& s) {
  const int file = fetch_descriptor(s).release();
  s.say(file);
  return file >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult close(Subject& s) {
  return ::close(s.next<int>()) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// PATH: where the next "receive" gets a descriptor from the connecting process.
CUresult listen(Subject& s) {
  s.listener.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un name = address_of(s.next<std::string>());
  const bool listens =
      ::bind(s.listener.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 &&
      ::listen(s.listener.get(), 1) == 0;
  return listens ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/// BUFFER PATH: exports it and sends the descriptor.
CUresult send(Subject& s) {
  int raw = -1;
  if (const CUresult result =
          s.cu.cuMemExportToShareableHandle(&raw, s.buffers.at(s.next<std::size_t>()).handle,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) {
    return result;
  }
  const UniqueFd file(raw);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un name = address_of(s.next<std::string>());
  const char byte = 0;
  const bool sent =
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 &&
      send_with_descriptors(socket.get(), bytes_of(byte), std::span(&raw, 1), 0) == 1;
  return sent ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/// BYTES [DEVICE]
CUresult receive(Subject& s) {
  Buffer buffer;
  buffer.bytes = s.next<std::size_t>();
  const UniqueFd socket(::accept4(s.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  char byte = 0;
  int raw = -1;
  receive_with_descriptors(socket.get(), writable_bytes_of(byte), std::span(&raw, 1), 0);
  const UniqueFd file(raw);
  if (const CUresult result = s.import_from(file, &buffer)) return result;
  const CUresult result = s.map(&buffer, s.next<int>());
  return s.keep(result, buffer);
}

/// The same by the CPU.
CUresult cpu_fill(Subject& s) {
  const Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  std::memset(reinterpret_cast<void*>(buffer.address), s.next<int>(), buffer.bytes);
  return CUDA_SUCCESS;
}

CUresult cpu_holds(Subject& s) {
  const Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  const auto* bytes = reinterpret_cast<const char*>(buffer.address);
  const auto value = static_cast<char>(s.next<int>());
  s.say(std::all_of(bytes, bytes + buffer.bytes, [&](char byte) { return byte == value; }));
  return CUDA_SUCCESS;
}

/// BUFFER WORD: all of the buffer by a kernel in the current context; does not wait for it.
CUresult kernel_fill_later(Subject& s) {
  const Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  return s.launch("gcr_fill", {buffer.address, buffer.bytes / 8, s.next<unsigned>()});
}

/// BUFFER WORD: the same, and waits for it.
CUresult kernel_fill(Subject& s) {
  const CUresult result = kernel_fill_later(s);
  return result != CUDA_SUCCESS ? result : s.cu.cuCtxSynchronize();
}

/// BUFFER VALUE: a kernel that waits until the first word is at least that; does not wait for it.
CUresult await(Subject& s) {
  const Buffer& buffer = s.buffers.at(s.next<std::size_t>());
  return s.launch("gcr_wait", {buffer.address, s.next<unsigned>()});
}

CUresult query(Subject& s) { return s.cu.cuStreamQuery(nullptr); }

CUresult synchronize(Subject& s) { return s.cu.cuCtxSynchronize(); }

CUresult word(Subject& s) {
  std::uint64_t value = 0;
  const CUresult result =
      s.cu.cuMemcpyDtoH_v2(&value, s.buffers.at(s.next<std::size_t>()).address, sizeof(value));
  s.say(value);
  return result;
}

/// TO CONTEXT FROM CONTEXT
CUresult copy_peer(Subject& s) {
  const Buffer& to = s.buffers.at(s.next<std::size_t>());
  CUcontext to_context = s.contexts.at(s.next<std::size_t>());
  const Buffer& from = s.buffers.at(s.next<std::size_t>());
  CUcontext from_context = s.contexts.at(s.next<std::size_t>());
  if (const CUresult result =
          s.cu.cuMemcpyPeer(to.address, to_context, from.address, from_context, to.bytes / 2)) {
    return result;
  }
  const std::size_t half = to.bytes / 2;
  if (const CUresult result = s.cu.cuMemcpyPeerAsync(
          to.address + half, to_context, from.address + half, from_context, half, nullptr)) {
    return result;
  }
  return s.cu.cuStreamSynchronize(nullptr);
}

/// The bytes of a handle in hexadecimal, and back.
template <class Handle>
std::string digits_of(const Handle& handle) {
  std::string digits;
  for (const char byte : handle.reserved) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned char>(byte));
    digits += two;
  }
  return digits;
}
template <class Handle>
Handle next_handle(Subject& s) {
  const auto digits = s.next<std::string>();
  Handle handle{};
  for (std::size_t i = 0; i < sizeof(handle.reserved); ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

CUresult ipc_get(Subject& s) {
  CUipcMemHandle handle{};
  const CUresult result =
      s.cu.cuIpcGetMemHandle(&handle, s.buffers.at(s.next<std::size_t>()).address);
  s.say(digits_of(handle));
  return result;
}

CUresult ipc_open(Subject& s) {
  Buffer buffer;
  const CUresult result =
      s.cu.cuIpcOpenMemHandle_v2(&buffer.address, next_handle<CUipcMemHandle>(s), 1);
  if (result == CUDA_SUCCESS) {
    s.cu.cuMemGetAddressRange_v2(nullptr, &buffer.bytes, buffer.address);
  }
  return s.keep(result, buffer);
}

/// FLAGS: an event, which the commands below use.
CUresult event(Subject& s) { return s.cu.cuEventCreate(&s.event, s.next<unsigned>()); }

CUresult event_get(Subject& s) {
  CUipcEventHandle handle{};
  const CUresult result = s.cu.cuIpcGetEventHandle(&handle, s.event);
  s.say(digits_of(handle));
  return result;
}

CUresult event_open(Subject& s) {
  return s.cu.cuIpcOpenEventHandle(&s.event, next_handle<CUipcEventHandle>(s));
}

CUresult event_record(Subject& s) { return s.cu.cuEventRecord(s.event, nullptr); }

CUresult event_wait(Subject& s) { return s.cu.cuStreamWaitEvent(nullptr, s.event, 0); }

CUresult event_query(Subject& s) { return s.cu.cuEventQuery(s.event); }

CUresult event_destroy(Subject& s) { return s.cu.cuEventDestroy_v2(s.event); }

CUresult ipc_close(Subject& s) {
  return s.cu.cuIpcCloseMemHandle(s.buffers.at(s.next<std::size_t>()).address);
}

}  // namespace

void add_sharing_commands(Subject& subject) {
  subject.add({
      {"current", current},
      {"devices", devices},
      {"can_access", can_access},
      {"p2p_access", p2p_access},
      {"enable_peer", enable_peer},
      {"disable_peer", disable_peer},
      {"numa", numa},
      {"allow_cpu", allow_cpu},
      {"host", host},
      {"access", access},
      {"get_access", get_access},
      {"properties", properties},
      {"retain", retain},
      {"unmap", unmap},
      {"map", map_again},
      {"release_handle", release_handle},
      {"take", take},
      {"close", close},
      {"listen", listen},
      {"send", send},
      {"receive", receive},
      {"cpu_fill", cpu_fill},
      {"cpu_holds", cpu_holds},
      {"kernel_fill", kernel_fill},
      {"kernel_fill_later", kernel_fill_later},
      {"await", await},
      {"query", query},
      {"synchronize", synchronize},
      {"word", word},
      {"copy_peer", copy_peer},
      {"ipc_get", ipc_get},
      {"ipc_open", ipc_open},
      {"ipc_close", ipc_close},
      {"event", event},
      {"event_get", event_get},
      {"event_open", event_open},
      {"event_record", event_record},
      {"event_wait", event_wait},
      {"event_query", event_query},
      {"event_destroy", event_destroy},
  });
}

}  // namespace gcr::softgpu::test
