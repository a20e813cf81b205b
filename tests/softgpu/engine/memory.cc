#include "tests/softgpu/engine/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "src/base/units.h"
#include "tests/softgpu/engine/mapping.h"
#include "tests/softgpu/engine/objects.h"

namespace gcr::softgpu {
namespace {

/// The content of an IPC handle: the owner of the memory and its address there.
struct IpcCard {
  std::int32_t pid;
  std::int32_t ordinal;
  std::uint64_t start;
  std::uint64_t bytes;
  std::uint64_t mapped_bytes;
};
static_assert(sizeof(IpcCard) <= kIpcHandleBytes);

std::uint64_t alignment_for(std::uint64_t bytes) {
  return bytes >= kChunkBytes ? kChunkBytes : kPageBytes;
}

}  // namespace

std::shared_ptr<Physical> Memory::make_physical(int ordinal, std::uint64_t bytes) {
  auto* physical = new Physical;
  physical->ordinal = ordinal;
  physical->bytes = bytes;
  physicals_.insert(physical);
  return {physical, [this](Physical* last) {
            physicals_.erase(last);
            account_as_freed(*last);
            delete last;
          }};
}

Result Memory::create_file(int ordinal, std::uint64_t bytes, UniqueFd* file) {
  return ordinal == kHostOrdinal ? create_host_file(bytes, file)
                                 : devices_->devices[ordinal].create_file(bytes, file);
}

void Memory::account_as_freed(const Physical& physical) {
  if (physical.imported || physical.ordinal == kHostOrdinal) return;
  devices_->devices[physical.ordinal].release(physical.bytes);
}

Range& Memory::add_range(std::uintptr_t start, std::uint64_t bytes, RangeKind kind,
                         Context* context) {
  Range& range = ranges_[start];
  range.start = start;
  range.bytes = bytes;
  range.kind = kind;
  range.context = context;
  range.id = next_id_++;
  return range;
}

Result Memory::allocate(int ordinal, std::uint64_t bytes, Context* context, RangeKind kind,
                        const void* pool, std::uintptr_t* address) {
  if (bytes == 0) return Result::kInvalidValue;
  const std::uint64_t whole = round_up(bytes, kPageBytes);
  UniqueFd file;
  if (const Result result = create_file(ordinal, whole, &file)) return result;
  std::lock_guard lock(mutex_);
  auto physical = make_physical(ordinal, whole);
  const std::uintptr_t start = reserve_addresses(whole, alignment_for(whole));
  if (start == 0) return Result::kOutOfMemory;
  if (!map_file_over(start, whole, file.get(), 0, kReadWrite)) {
    ::munmap(reinterpret_cast<void*>(start), whole);
    return Result::kOutOfMemory;
  }
  physical->home = start;
  Range& range = add_range(start, bytes, kind, context);
  range.ordinal = ordinal;
  range.pool = pool;
  range.physical = std::move(physical);
  *address = start;
  return Result::kSuccess;
}

Result Memory::allocate_host(std::uint64_t bytes, Context* context, RangeKind kind, unsigned flags,
                             std::uintptr_t* address) {
  if (bytes == 0) return Result::kInvalidValue;
  const std::uint64_t whole = round_up(bytes, kPageBytes);
  // NVIDIA's driver shares page-locked memory with its module (measured: /dev/zero, driver 580).
  const bool shared = kind == RangeKind::kHost && devices_->vendor == Vendor::kNvidia;
  void* at = ::mmap(nullptr, whole, kReadWrite, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS,
                    -1, 0);
  if (at == MAP_FAILED) return Result::kOutOfMemory;
  const std::uintptr_t by_devices = shared ? reserve_addresses(whole, kPageBytes) : 0;
  if (shared &&
      (by_devices == 0 || !map_again(by_devices, reinterpret_cast<std::uintptr_t>(at), whole))) {
    ::munmap(at, whole);
    if (by_devices != 0) ::munmap(reinterpret_cast<void*>(by_devices), whole);
    return Result::kOutOfMemory;
  }
  std::lock_guard lock(mutex_);
  *address = reinterpret_cast<std::uintptr_t>(at);
  Range& range = add_range(*address, bytes, kind, context);
  range.host_flags = flags;
  range.by_devices = by_devices;
  return Result::kSuccess;
}

std::uintptr_t Memory::as_devices_see(std::uintptr_t address) const {
  std::shared_lock lock(mutex_);
  const Range* const range = at(address);
  if (range == nullptr || range->by_devices == 0) return address;
  return range->by_devices + (address - range->start);
}

Result Memory::register_host(std::uintptr_t address, std::uint64_t bytes, Context* context,
                             unsigned flags) {
  if (address == 0 || bytes == 0) return Result::kInvalidValue;
  std::lock_guard lock(mutex_);
  if (overlaps(address, bytes)) return Result::kHostMemoryAlreadyRegistered;
  add_range(address, bytes, RangeKind::kHostForeign, context).host_flags = flags;
  return Result::kSuccess;
}

void Memory::drop_range(Ranges::iterator at) {
  const Range& range = at->second;
  void* start = reinterpret_cast<void*>(range.start);
  if (range.kind == RangeKind::kVmm) {
    make_reserved(range.start, range.bytes);
  } else if (range.kind != RangeKind::kHostForeign) {
    ::munmap(start, round_up(range.bytes, kPageBytes));
  }
  if (range.by_devices != 0) {
    ::munmap(reinterpret_cast<void*>(range.by_devices), round_up(range.bytes, kPageBytes));
  }
  ranges_.erase(at);
}

Result Memory::free(std::uintptr_t address, unsigned kinds) {
  std::lock_guard lock(mutex_);
  const auto at = ranges_.find(address);
  if (at == ranges_.end() || (bit(at->second.kind) & kinds) == 0) return Result::kInvalidValue;
  drop_range(at);
  return Result::kSuccess;
}

void Memory::free_all_of(const Context* context) {
  std::lock_guard lock(mutex_);
  for (auto at = ranges_.begin(); at != ranges_.end();) {
    const auto next = std::next(at);
    if (at->second.context == context && at->second.kind != RangeKind::kVmm) drop_range(at);
    at = next;
  }
}

Result Memory::ipc_handle(std::uintptr_t address, std::span<char, kIpcHandleBytes> handle) {
  std::lock_guard lock(mutex_);
  const Range* range = at(address);
  if (range == nullptr || range->kind != RangeKind::kDriver) return Result::kInvalidValue;
  range->physical->ipc_given = true;
  const IpcCard card{::getpid(), range->ordinal, range->start, range->bytes,
                     range->physical->bytes};
  std::ranges::fill(handle, 0);
  std::memcpy(handle.data(), &card, sizeof(card));
  return Result::kSuccess;
}

Result Memory::ipc_open(std::span<const char, kIpcHandleBytes> handle, Context* context,
                        std::uintptr_t* address) {
  IpcCard card;
  std::memcpy(&card, handle.data(), sizeof(card));
  if (card.pid == ::getpid()) return Result::kInvalidContext;
  char path[96];
  std::snprintf(path, sizeof(path), "/proc/%d/map_files/%lx-%lx", card.pid,
                static_cast<unsigned long>(card.start),
                static_cast<unsigned long>(card.start + card.mapped_bytes));
  UniqueFd file(::open(path, O_RDWR | O_CLOEXEC));
  std::lock_guard lock(mutex_);
  const int ordinal = file ? devices_->holder_of(file.get()) : -1;
  struct stat status {};
  if (ordinal < 0 || ::fstat(file.get(), &status) != 0) return Result::kInvalidValue;
  for (auto& [opened, range] : ranges_) {
    if (range.kind != RangeKind::kIpc || range.context != context ||
        range.physical->file_system != status.st_dev || range.physical->inode != status.st_ino) {
      continue;
    }
    ++range.physical->ipc_opens;
    *address = opened;
    return Result::kSuccess;
  }
  const std::uintptr_t start =
      reserve_addresses(card.mapped_bytes, alignment_for(card.mapped_bytes));
  if (start == 0 || !map_file_over(start, card.mapped_bytes, file.get(), 0, kReadWrite)) {
    return Result::kMapFailed;
  }
  auto physical = make_physical(ordinal, card.mapped_bytes);
  physical->imported = true;
  physical->home = start;
  physical->file_system = status.st_dev;
  physical->inode = status.st_ino;
  physical->ipc_opens = 1;
  Range& range = add_range(start, card.bytes, RangeKind::kIpc, context);
  range.ordinal = ordinal;
  range.physical = std::move(physical);
  *address = start;
  return Result::kSuccess;
}

Result Memory::ipc_close(std::uintptr_t address) {
  std::lock_guard lock(mutex_);
  const auto opened = ranges_.find(address);
  if (opened == ranges_.end() || opened->second.kind != RangeKind::kIpc) {
    return Result::kInvalidValue;
  }
  if (--opened->second.physical->ipc_opens == 0) drop_range(opened);
  return Result::kSuccess;
}

const Range* Memory::at(std::uintptr_t address) const {
  auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  const Range& range = std::prev(next)->second;
  return address - range.start < range.bytes ? &range : nullptr;
}

bool Memory::overlaps(std::uintptr_t address, std::uint64_t bytes) const {
  if (at(address) != nullptr) return true;
  const auto next = ranges_.lower_bound(address);
  return next != ranges_.end() && next->first < address + bytes;
}

Result Memory::set_sync_memops(std::uintptr_t address, bool value) {
  std::lock_guard lock(mutex_);
  const Range* range = at(address);
  if (range == nullptr || range->kind == RangeKind::kVmm) return Result::kInvalidValue;
  ranges_.at(range->start).sync_memops = value;
  return Result::kSuccess;
}

RangeInfo Memory::find(std::uintptr_t address) const {
  std::shared_lock lock(mutex_);
  const Range* range = at(address);
  if (range == nullptr) return {};
  RangeInfo info = *range;
  info.told_ordinal = info.ordinal;
  if (range->kind == RangeKind::kVmm && range->physical->imported && !info.on_host()) {
    info.told_ordinal = devices_->devices[info.ordinal].place;
  }
  return info;
}

template <class Allows>
bool Memory::all_allow(std::uintptr_t address, std::uint64_t bytes, const Allows& allows) const {
  std::shared_lock lock(mutex_);
  const std::uintptr_t end = address + bytes;
  if (end < address) return false;
  while (address < end) {
    const Range* range = at(address);
    if (range == nullptr || !allows(*range)) return false;
    address = range->start + range->bytes;
  }
  return true;
}

bool Memory::accessible(std::uintptr_t address, std::uint64_t bytes, int protection) const {
  return all_allow(address, bytes, [&](const Range& range) {
    return (range.protection() & protection) == protection;
  });
}

bool Memory::accessible_to_kernels(const Context& context, std::uintptr_t address,
                                   std::uint64_t bytes, int protection) const {
  return all_allow(address, bytes, [&](const Range& range) {
    switch (range.kind) {
      case RangeKind::kDriver:
        return range.ordinal == context.ordinal || context.reaches(range.context);
      case RangeKind::kIpc:  // opened with peer access for the devices of its context
        return range.context->ordinal == context.ordinal;
      case RangeKind::kVmm:
        return (range.access.of_device(context.ordinal) & protection) == protection;
      default:
        return true;
    }
  });
}

std::uint64_t Memory::bytes_of_pool(const void* pool) const {
  std::shared_lock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [start, range] : ranges_) {
    if (range.kind == RangeKind::kPool && range.pool == pool) bytes += range.bytes;
  }
  return bytes;
}

std::uint64_t Memory::bytes_of_graphs(int ordinal) const {
  std::shared_lock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [start, range] : ranges_) {
    if (range.kind == RangeKind::kGraph && range.ordinal == ordinal) bytes += range.bytes;
  }
  return bytes;
}

void Memory::forget_files() {
  for (Physical* physical : physicals_) physical->file.reset();
}

}  // namespace gcr::softgpu
