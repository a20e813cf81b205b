// Checkpoint and restore of memory: every physical allocation moves into private anonymous memory
// (which CRIU dumps) and its mappings become bare address space; restore is the reverse, into the
// devices that the table names then. All of it runs on the serving thread, with the call gate
// closed and the application's threads possibly frozen: it takes no lock and no heap memory.
#include <sys/mman.h>

#include "src/base/units.h"
#include "tests/softgpu/engine/mapping.h"
#include "tests/softgpu/engine/memory.h"

namespace gcr::softgpu {

Result Memory::checkpointable() const {
  for (const auto& [start, range] : ranges_) {
    if (range.kind == RangeKind::kManaged) return Result::kNotSupported;
  }
  return Result::kSuccess;
}

Result Memory::loss() const {
  if (has_imported_pool) return Result::kOperatingSystem;
  Result loss = Result::kSuccess;
  for (const Physical* physical : physicals_) {
    if (physical->vmm && (physical->imported || physical->exported)) {
      return Result::kNotSupported;
    }
    if (physical->ordinal == kHostOrdinal) loss = Result::kUnknown;
    if (physical->imported || physical->ipc_given) loss = Result::kInvalidValue;
  }
  return loss;
}

bool Memory::prepare_host_copies() {
  bool complete = true;
  for (Physical* physical : physicals_) {
    // NVIDIA's driver has all of it populated; here large buffers may be mostly empty.
    const int kind = physical->bytes <= 64 * kMiB ? MAP_POPULATE : MAP_NORESERVE;
    void* copy =
        ::mmap(nullptr, physical->bytes, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS | kind, -1, 0);
    physical->host_copy = copy == MAP_FAILED ? nullptr : copy;
    complete = complete && physical->host_copy != nullptr;
  }
  if (complete) return true;
  for (Physical* physical : physicals_) {
    if (physical->host_copy != nullptr) ::munmap(physical->host_copy, physical->bytes);
    physical->host_copy = nullptr;
  }
  return false;
}

void Memory::park_one(Physical* physical) {
  if (physical->home != 0) {
    copy_nonzero_pieces(physical->host_copy, reinterpret_cast<void*>(physical->home),
                        physical->bytes);
    make_reserved(physical->home, physical->bytes);
  } else {
    void* content =
        ::mmap(nullptr, physical->bytes, PROT_READ, MAP_SHARED, physical->file.get(), 0);
    copy_nonzero_pieces(physical->host_copy, content, physical->bytes);
    ::munmap(content, physical->bytes);
    for (const auto& [start, range] : ranges_) {
      if (range.physical.get() == physical) make_reserved(start, range.bytes);
    }
  }
  physical->file.reset();
  account_as_freed(*physical);
}

Result Memory::park() {
  if (!prepare_host_copies()) return Result::kOutOfMemory;
  lost_ = loss();
  for (Physical* physical : physicals_) park_one(physical);
  for (const auto& [start, range] : ranges_) {
    if (range.by_devices != 0) make_reserved(range.by_devices, round_up(range.bytes, kPageBytes));
  }
  return Result::kSuccess;
}

bool Memory::create_files() {
  for (Physical* physical : physicals_) {
    if (create_file(physical->ordinal, physical->bytes, &physical->file) == Result::kSuccess)
      continue;
    for (Physical* earlier : physicals_) {
      if (!earlier->file) continue;
      earlier->file.reset();
      account_as_freed(*earlier);
    }
    return false;
  }
  return true;
}

void Memory::unpark_one(Physical* physical) {
  if (physical->home != 0) {
    map_file_over(physical->home, physical->bytes, physical->file.get(), 0, kReadWrite);
    copy_nonzero_pieces(reinterpret_cast<void*>(physical->home), physical->host_copy,
                        physical->bytes);
    physical->file.reset();
  } else {
    void* content =
        ::mmap(nullptr, physical->bytes, kReadWrite, MAP_SHARED, physical->file.get(), 0);
    copy_nonzero_pieces(content, physical->host_copy, physical->bytes);
    ::munmap(content, physical->bytes);
    for (const auto& [start, range] : ranges_) {
      if (range.physical.get() != physical) continue;
      map_file_over(start, range.bytes, physical->file.get(), 0, range.protection());
    }
  }
  ::munmap(physical->host_copy, physical->bytes);
  physical->host_copy = nullptr;
}

Result Memory::unpark() {
  if (lost_ != Result::kSuccess) return lost_;
  if (!create_files()) return Result::kOutOfMemory;
  for (Physical* physical : physicals_) unpark_one(physical);
  for (const auto& [start, range] : ranges_) {
    if (range.by_devices != 0)
      map_again(range.by_devices, start, round_up(range.bytes, kPageBytes));
  }
  return Result::kSuccess;
}

}  // namespace gcr::softgpu
