// Checkpoint and restore of memory: every physical allocation moves into private anonymous memory
// (which CRIU carries) and its mappings become bare address space; restore is the way back, into
// whatever devices the table names then. All of it runs on the serving thread, with the call gate
// closed and the application's threads possibly frozen: it takes no lock and no heap memory.
#include <sys/mman.h>

#include "src/base/units.h"
#include "tests/softgpu/mapping.h"
#include "tests/softgpu/memory.h"

namespace gcr::softgpu {

CUresult Memory::checkpointable() const {
  for (const auto& [start, range] : ranges_) {
    if (range.kind == RangeKind::kManaged) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

CUresult Memory::loss_by_sharing() const {
  CUresult loss = CUDA_SUCCESS;
  for (const Physical* physical : physicals_) {
    if (physical->vmm && (physical->imported || physical->exported)) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (physical->imported || physical->ipc_given) loss = CUDA_ERROR_INVALID_VALUE;
  }
  return loss;
}

bool Memory::prepare_host_copies() {
  bool complete = true;
  for (Physical* physical : physicals_) {
    void* copy = ::mmap(nullptr, physical->bytes, kReadWrite,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
    copy_nonzero_pages(physical->host_copy, reinterpret_cast<void*>(physical->home),
                       physical->bytes);
    make_reserved(physical->home, physical->bytes);
  } else {
    void* content =
        ::mmap(nullptr, physical->bytes, PROT_READ, MAP_SHARED, physical->file.get(), 0);
    copy_nonzero_pages(physical->host_copy, content, physical->bytes);
    ::munmap(content, physical->bytes);
    for (const auto& [start, range] : ranges_) {
      if (range.physical.get() == physical) make_reserved(start, range.bytes);
    }
  }
  physical->file.reset();
  account_as_freed(*physical);
}

CUresult Memory::park() {
  if (!prepare_host_copies()) return CUDA_ERROR_OUT_OF_MEMORY;
  lost_ = loss_by_sharing();
  for (Physical* physical : physicals_) park_one(physical);
  return CUDA_SUCCESS;
}

bool Memory::create_files() {
  for (Physical* physical : physicals_) {
    if (create_file(physical->ordinal, physical->bytes, &physical->file) == CUDA_SUCCESS) continue;
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
    copy_nonzero_pages(reinterpret_cast<void*>(physical->home), physical->host_copy,
                       physical->bytes);
    physical->file.reset();
  } else {
    void* content =
        ::mmap(nullptr, physical->bytes, kReadWrite, MAP_SHARED, physical->file.get(), 0);
    copy_nonzero_pages(content, physical->host_copy, physical->bytes);
    ::munmap(content, physical->bytes);
    for (const auto& [start, range] : ranges_) {
      if (range.physical.get() != physical) continue;
      map_file_over(start, range.bytes, physical->file.get(), 0, range.protection());
    }
  }
  ::munmap(physical->host_copy, physical->bytes);
  physical->host_copy = nullptr;
}

CUresult Memory::unpark() {
  if (lost_ != CUDA_SUCCESS) return lost_;
  if (!create_files()) return CUDA_ERROR_OUT_OF_MEMORY;
  for (Physical* physical : physicals_) unpark_one(physical);
  return CUDA_SUCCESS;
}

}  // namespace gcr::softgpu
