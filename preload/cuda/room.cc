#include "preload/cuda/room.h"

#include <sys/mman.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "preload/cuda/backing.h"
#include "preload/cuda/contexts.h"
#include "preload/cuda/driver_calls.h"
#include "preload/gate.h"
#include "preload/log.h"
#include "preload/runtime.h"

namespace gcr::preload {
namespace {

/// For other threads to leave the gate, and for the GPU to do all submitted work.
constexpr std::chrono::seconds kPatience{1};

/// An arena that can be dissolved.
struct Loose {
  CUcontext context;
  CUdeviceptr address;
  std::size_t size_bytes;
  std::size_t unused_bytes;
  CUmemGenericAllocationHandle handle;
  bool lent;  ///< an agent may hold its memory, too
};

/// One allocation in it. `host_node` as in Physical.
struct Piece {
  CUdeviceptr address;
  std::size_t size_bytes;
  CUmemGenericAllocationHandle handle = 0;
  int host_node = -1;
};

/// The one with most room on `device`; `unused_bytes` are of all together. What other processes
/// have mapped too stays as it is.
std::optional<Loose> loosest_arena(int device, std::size_t* unused_bytes) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  std::optional<Loose> loosest;
  *unused_bytes = 0;
  for (const Arena& arena : s.arenas.all()) {
    const Physical* physical = s.inventory.find_physical(arena.number());
    const std::size_t unused = arena.unused_bytes();
    if (&arena.kind() != &kMediumArenas || unused == 0 || arena.is_empty() ||
        physical->device != device || physical->shared || physical->foreign) {
      continue;
    }
    *unused_bytes += unused;
    if (loosest.has_value() && unused <= loosest->unused_bytes) continue;
    loosest = {arena.context(), arena.address(),  arena.size_bytes(),
               unused,          physical->handle, physical->export_session != 0};
  }
  return loosest;
}

std::vector<Piece> pieces_of(const Loose& arena) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  std::vector<Piece> pieces;
  const Arena& found = *s.arenas.find(arena.address);
  s.inventory.for_each_plain(*s.inventory.find_mapping(arena.address), [&](const Plain& plain) {
    pieces.push_back(
        {.address = plain.address, .size_bytes = found.whole_units(plain.requested_bytes)});
  });
  return pieces;
}

void release_each(std::vector<Piece>& pieces) {
  for (Piece& piece : pieces) {
    if (piece.handle != 0) real::cuMemRelease(piece.handle);
    piece.handle = 0;
  }
}

/// Memory of its own for each piece, or for none.
bool create_each(std::vector<Piece>& pieces, int device) {
  for (Piece& piece : pieces) {
    if (create_memory(device, piece.size_bytes, &piece.handle)) continue;
    release_each(pieces);
    return false;
  }
  return true;
}

/// In place of device memory that another process was quicker to take: slow, and as good otherwise.
void create_in_host_memory(Piece& piece, int device) {
  if (real::cuDeviceGetAttribute(&piece.host_node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) !=
          CUDA_SUCCESS ||
      piece.host_node < 0) {
    piece.host_node = 0;
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, piece.host_node};
  const CUresult result = real::cuMemCreate(&piece.handle, piece.size_bytes, &properties, 0);
  log_line("%zu bytes at 0x%llx are in host memory now: %d", piece.size_bytes, piece.address,
           result);
}

/// What `arena` holds, while its pieces get other memory: at the same distances from `address`.
class Contents {
 public:
  /// Its memory, mapped a second time.
  static Contents in_place(const Loose& arena, int device) {
    const std::size_t unit = device_facts(device).granularity_bytes;
    return {map_whole(arena.handle, arena.size_bytes, unit, device), arena.size_bytes, false};
  }
  /// A copy in host memory.
  static Contents on_host(const Loose& arena, const std::vector<Piece>& pieces) {
    void* host = ::mmap(nullptr, arena.size_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (host == MAP_FAILED) return {0, 0, true};
    Contents contents{reinterpret_cast<CUdeviceptr>(host), arena.size_bytes, true};
    for (const Piece& piece : pieces) {
      const CUdeviceptr copy = contents.address_ + (piece.address - arena.address);
      if (real::cuMemcpy(copy, piece.address, piece.size_bytes) != CUDA_SUCCESS)
        return {0, 0, true};
    }
    return contents;
  }
  Contents(Contents&& other) noexcept
      : address_(std::exchange(other.address_, 0)),
        size_bytes_(other.size_bytes_),
        on_host_(other.on_host_) {}
  Contents& operator=(Contents&&) = delete;
  ~Contents() {
    if (address_ == 0) return;
    if (on_host_) {
      ::munmap(reinterpret_cast<void*>(address_), size_bytes_);
    } else {
      real::cuMemUnmap(address_, size_bytes_);
      real::cuMemAddressFree(address_, size_bytes_);
    }
  }
  CUdeviceptr address() const { return address_; }
  bool on_host() const { return on_host_; }

 private:
  Contents(CUdeviceptr address, std::size_t size_bytes, bool on_host)
      : address_(address), size_bytes_(size_bytes), on_host_(on_host) {}

  CUdeviceptr address_;
  std::size_t size_bytes_;
  bool on_host_;
};

/// The memory for its pieces is in `pieces`, or has to be made of what the arena's becomes. False:
/// another process was quicker to take that.
bool move_out(const Loose& arena, const Contents& contents, std::vector<Piece>& pieces,
              int device) {
  ProcessState& s = state();
  Mapping whole;
  {
    const std::lock_guard lock(s.mutex);
    whole = s.inventory.take_mapping(arena.address);
    s.arenas.remove(arena.address);
    if (contents.on_host()) release_if_unused(s, *whole.physical);
  }
  bool all_on_device = true;
  for (Piece& piece : pieces) {
    if (piece.handle == 0 && !create_memory(device, piece.size_bytes, &piece.handle)) {
      create_in_host_memory(piece, device);
      all_on_device = false;
    }
    CUresult result = map_at(piece.address, piece.size_bytes, piece.handle, device);
    if (result == CUDA_SUCCESS) {
      const CUdeviceptr content = contents.address() + (piece.address - arena.address);
      result = real::cuMemcpy(piece.address, content, piece.size_bytes);
    }
    if (result != CUDA_SUCCESS) {
      log_line("%zu bytes at 0x%llx are lost: %d", piece.size_bytes, piece.address, result);
    }
  }
  real::cuCtxSynchronize();
  const std::lock_guard lock(s.mutex);
  Reservation& reservation = s.reservations[arena.address];
  reservation = {arena.address, arena.size_bytes, pieces.size()};
  for (const Piece& piece : pieces) {
    Mapping& mapping =
        add_backing_of(s, arena.context, device, {piece.handle, piece.address, piece.size_bytes});
    mapping.reservation = &reservation;
    mapping.physical->host_node = piece.host_node;
  }
  if (!contents.on_host()) release_if_unused(s, *whole.physical);
  return all_on_device;
}

/// False: no more room is to be had. The caller is alone, the GPU is idle and the arena's context
/// current.
bool dissolve(const Loose& arena, int device) {
  std::vector<Piece> pieces = pieces_of(arena);
  const bool fits = create_each(pieces, device);
  if (!fits && arena.lent) return false;  // its memory would not be free
  const Contents contents =
      fits ? Contents::in_place(arena, device) : Contents::on_host(arena, pieces);
  if (contents.address() == 0 ||
      real::cuMemUnmap(arena.address, arena.size_bytes) != CUDA_SUCCESS) {
    release_each(pieces);
    return false;
  }
  return move_out(arena, contents, pieces, device);
}

bool is_idle() {
  door::Obstacle obstacle{};
  return runtime::wait_until_idle(kPatience, &obstacle).outcome == door::Outcome::kOk;
}

}  // namespace

bool make_room(int device, std::size_t wanted_bytes) {
  std::size_t unused_bytes = 0;
  if (!loosest_arena(device, &unused_bytes).has_value()) return false;
  const gate::Alone alone(kPatience);
  if (!alone || !is_idle()) {
    log_line("no room for %zu bytes, because others are at work", wanted_bytes);
    return false;
  }
  bool gained = release_unused(true);
  for (std::optional<std::size_t> free_before;; gained = true) {
    const std::optional<Loose> arena = loosest_arena(device, &unused_bytes);
    if (!arena.has_value()) return gained;
    const CurrentContext inside(arena->context);
    std::size_t free_bytes = 0, total_bytes = 0;
    if (inside.result() != CUDA_SUCCESS ||
        real::cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS) {
      return gained;
    }
    if (free_bytes >= wanted_bytes) return true;
    const bool grows = free_bytes > free_before;  // else an agent holds what was given back, too
    if (!grows || free_bytes + unused_bytes < wanted_bytes || !dissolve(*arena, device)) {
      log_line("no room for %zu bytes: %zu are free, and %zu in arenas", wanted_bytes, free_bytes,
               unused_bytes);
      return gained;
    }
    free_before = free_bytes;
  }
}

}  // namespace gcr::preload
