#include "preload/cuda/real_driver.h"

#include <dlfcn.h>

#include <cstring>

#include "preload/elf_object.h"

namespace gcr::preload {
namespace {

constexpr char kDriverSoname[] = "libcuda.so.1";
constexpr std::size_t kMaxPathBytes = 4096;

constinit RealDriver g_addresses;

void store(const DriverRow& row, void* address) {
  auto* slot =
      reinterpret_cast<void**>(reinterpret_cast<char*>(&g_addresses) + row.real_offset_bytes);
  __atomic_store_n(slot, address, __ATOMIC_RELAXED);
}

}  // namespace

namespace real_driver_internal {

constinit std::atomic<const RealDriver*> g_driver{nullptr};
constinit std::atomic<bool> g_left_to_driver{false};

// Threads that come here at the same time store the same values, so that the library never holds
// a lock together with the loader's.
const RealDriver* find() {
  char path[kMaxPathBytes] = "";
  const bool found = visit_objects([&path](const ElfObject& object, const dl_phdr_info& info) {
    if (std::strcmp(object.soname(), kDriverSoname) != 0) return false;
    for (const DriverRow& row : driver_rows()) store(row, object.find_function(row.symbol));
    std::strncpy(path, info.dlpi_name, sizeof(path) - 1);
    return true;
  });
  if (!found) return nullptr;
  // Kept open for good: the addresses are handed to the application and used by other threads.
  if (dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) == nullptr) return nullptr;
  g_driver.store(&g_addresses, std::memory_order_release);
  return &g_addresses;
}

}  // namespace real_driver_internal
}  // namespace gcr::preload
