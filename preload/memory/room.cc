// How an arena is dissolved: with the gate held exclusively and the GPU idle, each allocation in
// the arena gets physical memory of its own. If the device has enough free memory for all of them,
// the arena is mapped a second time and copied from there; otherwise its contents go through host
// memory, and its own memory is released first. Then the allocations are mapped at their old
// addresses and the arena no longer exists. If another process takes the released memory first,
// allocations get host memory, or the thread waits.
#include "preload/memory/room.h"

#include <sys/mman.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "preload/gate.h"
#include "preload/log.h"
#include "preload/memory/backing.h"
#include "preload/memory/contexts.h"
#include "preload/runtime.h"

namespace gcr::preload {
namespace {

/// How long to wait for other threads to leave the gate, and for the GPU to finish all submitted
/// work.
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::milliseconds kPause{10};

/// An arena that can be dissolved.
struct Loose {
  Context* context;
  Address address;
  std::size_t size_bytes;
  std::size_t unused_bytes;
  Handle handle;
  bool lent;  ///< an agent may also hold its memory
};

/// One allocation in an arena that is dissolved. `host_node` as in Physical.
struct Piece {
  Address address;
  std::size_t size_bytes;
  Handle handle = 0;
  int host_node = -1;
};

/// The medium arena with most unused memory on `device`; `unused_bytes` is the sum over all arenas.
/// Skips arenas that other processes have mapped too.
std::optional<Loose> loosest_arena(Runtime& r, int device, std::size_t* unused_bytes) {
  const std::lock_guard lock(r.mutex);
  std::optional<Loose> loosest;
  *unused_bytes = 0;
  for (const Arena& arena : r.arenas.all()) {
    const Physical* physical = r.inventory.find_physical(arena.number());
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

std::vector<Piece> pieces_of(Runtime& r, const Loose& arena) {
  const std::lock_guard lock(r.mutex);
  std::vector<Piece> pieces;
  const Arena& found = *r.arenas.find(arena.address);
  r.inventory.for_each_plain(*r.inventory.find_mapping(arena.address), [&](const Plain& plain) {
    pieces.push_back(
        {.address = plain.address, .size_bytes = found.whole_units(plain.requested_bytes)});
  });
  return pieces;
}

void release_each(Runtime& r, std::vector<Piece>& pieces) {
  for (Piece& piece : pieces) {
    if (piece.handle != 0) r.driver.release(piece.handle);
    piece.handle = 0;
  }
}

/// Creates physical memory for each piece, or for none.
bool create_each(Runtime& r, std::vector<Piece>& pieces, int device) {
  for (Piece& piece : pieces) {
    if (create_memory(r, device, piece.size_bytes, &piece.handle)) continue;
    release_each(r, pieces);
    return false;
  }
  return true;
}

/// Creates host memory for a piece, because another process took the device memory first. It is
/// slow, but equivalent otherwise.
void create_in_host_memory(Runtime& r, Piece& piece, int device) {
  const Result result =
      r.driver.create_on_host(&piece.handle, piece.size_bytes, device, &piece.host_node);
  log_line("device %d is full: %zu bytes at 0x%llx get host memory instead (driver result %u)",
           device, piece.size_bytes, piece.address, number(result));
}

/// Waits until the device has memory for a piece, for drivers without such host memory. Without it,
/// the content of the piece would be lost.
void create_when_possible(Runtime& r, Piece& piece, int device) {
  log_line("waiting for %zu bytes of device %d, which another process has taken", piece.size_bytes,
           device);
  while (!create_memory(r, device, piece.size_bytes, &piece.handle)) {
    std::this_thread::sleep_for(kPause);
  }
}

/// Keeps the contents of an arena accessible while its pieces get new memory, at the same offsets
/// from `address`.
class Contents {
 public:
  /// Maps the arena's memory a second time.
  static Contents in_place(Runtime& r, const Loose& arena, int device) {
    const std::size_t unit = device_facts(r, device).granularity_bytes;
    return {r, map_whole(r, arena.handle, arena.size_bytes, unit, device), arena.size_bytes, false};
  }
  /// Copies the pieces to host memory.
  static Contents on_host(Runtime& r, const Loose& arena, const std::vector<Piece>& pieces) {
    void* host = ::mmap(nullptr, arena.size_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (host == MAP_FAILED) return {r, 0, 0, true};
    Contents contents{r, reinterpret_cast<Address>(host), arena.size_bytes, true};
    for (const Piece& piece : pieces) {
      const Address copy = contents.address_ + (piece.address - arena.address);
      if (r.driver.copy(copy, piece.address, piece.size_bytes) != Result::kSuccess)
        return {r, 0, 0, true};
    }
    return contents;
  }
  Contents(Contents&& other) noexcept
      : r_(other.r_),
        address_(std::exchange(other.address_, 0)),
        size_bytes_(other.size_bytes_),
        on_host_(other.on_host_) {}
  Contents& operator=(Contents&&) = delete;
  ~Contents() {
    if (address_ == 0) return;
    if (on_host_) {
      ::munmap(reinterpret_cast<void*>(address_), size_bytes_);
    } else {
      r_.driver.unmap(address_, size_bytes_);
      r_.driver.free_addresses(address_, size_bytes_);
    }
  }
  Address address() const { return address_; }
  bool on_host() const { return on_host_; }

 private:
  Contents(Runtime& r, Address address, std::size_t size_bytes, bool on_host)
      : r_(r), address_(address), size_bytes_(size_bytes), on_host_(on_host) {}

  Runtime& r_;
  Address address_;
  std::size_t size_bytes_;
  bool on_host_;
};

/// Replaces the arena by one mapping for each piece, with its content. Pieces without a handle get
/// memory that the arena's release makes free. False: another process took that memory first.
bool move_out(Runtime& r, const Loose& arena, const Contents& contents, std::vector<Piece>& pieces,
              int device) {
  Mapping whole;
  {
    const std::lock_guard lock(r.mutex);
    whole = r.inventory.remove_mapping(arena.address);
    r.arenas.remove(arena.address);
    if (contents.on_host()) release_if_unused(r, *whole.physical);
  }
  bool all_on_device = true;
  for (Piece& piece : pieces) {
    if (piece.handle == 0 && !create_memory(r, device, piece.size_bytes, &piece.handle)) {
      all_on_device = false;
      if (r.driver.can_create_on_host()) {
        create_in_host_memory(r, piece, device);
      } else {
        create_when_possible(r, piece, device);
      }
    }
    Result result = map_at(r, piece.address, piece.size_bytes, piece.handle, device);
    if (result == Result::kSuccess) {
      const Address content = contents.address() + (piece.address - arena.address);
      result = r.driver.copy(piece.address, content, piece.size_bytes);
    }
    if (result != Result::kSuccess) {
      log_line("cannot move %zu bytes at 0x%llx, whose content is lost: driver result %u",
               piece.size_bytes, piece.address, number(result));
    }
  }
  r.driver.synchronize();
  const std::lock_guard lock(r.mutex);
  Reservation& reservation = r.reservations[arena.address];
  reservation = {arena.address, arena.size_bytes, pieces.size()};
  for (const Piece& piece : pieces) {
    Mapping& mapping =
        add_backing_of(r, arena.context, device, {piece.handle, piece.address, piece.size_bytes});
    mapping.reservation = &reservation;
    mapping.physical->host_node = piece.host_node;
  }
  if (!contents.on_host()) release_if_unused(r, *whole.physical);
  return all_on_device;
}

/// Dissolves an arena: first tries new device memory for its pieces; if that does not fit, moves
/// the contents through host memory. False: no further arena can be dissolved. The caller has
/// exclusive access to the gate, the GPU is idle, and the arena's context is current.
bool dissolve(Runtime& r, const Loose& arena, int device) {
  std::vector<Piece> pieces = pieces_of(r, arena);
  const bool fits = create_each(r, pieces, device);
  if (!fits && arena.lent) return false;  // releasing it would not free its memory
  const Contents contents =
      fits ? Contents::in_place(r, arena, device) : Contents::on_host(r, arena, pieces);
  if (contents.address() == 0 ||
      r.driver.unmap(arena.address, arena.size_bytes) != Result::kSuccess) {
    release_each(r, pieces);
    return false;
  }
  return move_out(r, arena, contents, pieces, device);
}

bool is_idle(Runtime& r) {
  door::Obstacle obstacle{};
  return wait_until_idle(r, kPatience, &obstacle).outcome == door::Outcome::kOk;
}

}  // namespace

bool make_room(Runtime& r, int device, std::size_t wanted_bytes) {
  std::size_t unused_bytes = 0;
  if (!loosest_arena(r, device, &unused_bytes).has_value()) return false;
  const gate::Alone alone(kPatience);
  if (!alone || !is_idle(r)) {
    log_line(
        "cannot reclaim %zu bytes from arenas: other threads or the GPU stayed busy for %lld s",
        wanted_bytes, static_cast<long long>(kPatience.count()));
    return false;
  }
  bool gained = release_unused(r, true);
  for (std::optional<std::size_t> free_before;; gained = true) {
    const std::optional<Loose> arena = loosest_arena(r, device, &unused_bytes);
    if (!arena.has_value()) return gained;
    const CurrentContext inside(r, arena->context);
    std::size_t free_bytes = 0;
    if (inside.result() != Result::kSuccess ||
        r.driver.free_memory(&free_bytes) != Result::kSuccess) {
      return gained;
    }
    if (free_bytes >= wanted_bytes) return true;
    const bool grows = free_bytes > free_before;  // else an agent also holds the released memory
    if (!grows || free_bytes + unused_bytes < wanted_bytes || !dissolve(r, *arena, device)) {
      log_line("cannot reclaim %zu bytes: %zu are free, %zu unused in arenas", wanted_bytes,
               free_bytes, unused_bytes);
      return gained;
    }
    free_before = free_bytes;
  }
}

}  // namespace gcr::preload
