#include "tests/softgpu/cuda/export_tables.h"

#include <cstring>

#include "tests/softgpu/cuda/face.h"

namespace gcr::softgpu {
namespace {

CUresult attend() {
  try {
    return Process::get().attend(Vendor::kNvidia);
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

int count() { return Process::get().devices.count; }

bool uuid(int index, void* bytes) {
  const Device* const device = Process::get().devices.at(index);
  if (device == nullptr) return false;
  std::memcpy(bytes, device->uuid.bytes.data(), device->uuid.bytes.size());
  return true;
}

constexpr NvmlTable kForNvml{sizeof(NvmlTable), &attend, &count, &uuid};
constexpr std::size_t kEmpty = sizeof(kEmpty);

bool is(const CUuuid& id, const CUuuid& other) {
  return std::memcmp(id.bytes, other.bytes, sizeof(id.bytes)) == 0;
}

}  // namespace

SOFTGPU_API cuGetExportTable(const void** table, const CUuuid* id) {
  if (is(*id, kNvmlTable)) {
    *table = &kForNvml;
    return CUDA_SUCCESS;
  }
  if (!is(*id, kProfilerTable)) return CUDA_ERROR_INVALID_VALUE;
  Process::get().profiled = true;
  *table = &kEmpty;
  return CUDA_SUCCESS;
}

}  // namespace gcr::softgpu
