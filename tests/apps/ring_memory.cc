#include "tests/apps/ring_memory.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "src/base/descriptor_passing.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::apps {
namespace {

/// The message over the socket, with a descriptor if the kind has one.
struct Offer {
  RingMemory kind;
  std::uint64_t bytes;
  CUipcMemHandle legacy;
};

CUmemLocation location_of(const Gpu& gpu, RingMemory kind) {
  if (kind != RingMemory::kHost) return {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device()};
  int node = 0;
  gpu.check(gpu.driver().attribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, gpu.device()),
            "ask for the NUMA node");
  return {CU_MEM_LOCATION_TYPE_HOST_NUMA, std::max(node, 0)};
}

CUmemAllocationProp properties_of(const Gpu& gpu, RingMemory kind) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = location_of(gpu, kind);
  return properties;
}

/// Maps the box's handle, with access for the own device and, if `for_cpu`, for the CPU.
void map_box(const Gpu& gpu, RingBox* box, bool for_cpu) {
  const Driver& driver = gpu.driver();
  std::vector<CUmemAccessDesc> accesses{
      {{CU_MEM_LOCATION_TYPE_DEVICE, gpu.device()}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  if (for_cpu) {
    accesses.push_back({location_of(gpu, box->kind), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  gpu.check(driver.reserve(&box->address, box->bytes, 0, 0, 0), "reserve addresses");
  gpu.check(driver.map(box->address, box->bytes, 0, box->handle, 0), "map shared memory");
  gpu.check(driver.set_access(box->address, box->bytes, accesses.data(), accesses.size()),
            "get access to shared memory");
}

}  // namespace

RingBox make_box(const Gpu& gpu, RingMemory kind, std::uint64_t bytes) {
  const Driver& driver = gpu.driver();
  RingBox box{kind, round_up(bytes, kChunkBytes), 0, 0};
  if (kind == RingMemory::kLegacyIpc) {
    box.address = gpu.allocate(box.bytes);
  } else {
    const CUmemAllocationProp properties = properties_of(gpu, kind);
    std::size_t piece = 0;
    gpu.check(driver.granularity(&piece, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              "ask for the granularity");
    box.bytes = round_up(box.bytes, piece);
    gpu.check(driver.create(&box.handle, box.bytes, &properties, 0), "create memory to share");
    map_box(gpu, &box, kind == RingMemory::kHost);
  }
  gpu.check(driver.set_words(box.address, 0, box.bytes / 4), "clear shared memory");
  gpu.synchronize();
  return box;
}

void offer_box(const Gpu& gpu, const RingBox& box, int socket) {
  Offer offer{box.kind, box.bytes, {}};
  int descriptor = -1;
  if (box.kind == RingMemory::kLegacyIpc) {
    gpu.check(gpu.driver().ipc_handle(&offer.legacy, box.address), "get a handle of memory");
  } else {
    gpu.check(gpu.driver().export_memory(&descriptor, box.handle,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              "export memory");
  }
  const UniqueFd file(descriptor);
  const std::span<const int> files(&descriptor, file ? 1 : 0);
  if (send_with_descriptors(socket, bytes_of(offer), files, 0) != sizeof(offer)) {
    fail("offer memory to the rank at the left", std::strerror(errno));
  }
}

RingBox take_box(const Gpu& gpu, int socket) {
  const Driver& driver = gpu.driver();
  Offer offer{};
  int descriptor = -1;
  const ReceivedMessage received = receive_with_descriptors(socket, writable_bytes_of(offer),
                                                            std::span(&descriptor, 1), MSG_WAITALL);
  const UniqueFd file(descriptor);
  if (received.length != sizeof(offer)) fail("take memory of the rank at the right", "it is gone");
  RingBox box{offer.kind, offer.bytes, 0, 0};
  if (box.kind == RingMemory::kLegacyIpc) {
    gpu.check(driver.ipc_open(&box.address, offer.legacy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              "open a handle of memory");
    return box;
  }
  gpu.check(driver.import_memory(&box.handle,
                                 reinterpret_cast<void*>(static_cast<std::intptr_t>(file.get())),
                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            "import memory");
  map_box(gpu, &box, false);
  gpu.check(driver.release(box.handle), "release the handle of imported memory");
  box.handle = 0;
  return box;
}

}  // namespace gcr::apps
