#include "preload/cuda/real_driver.h"

namespace gcr::preload {
namespace {

constinit RealDriver g_addresses;

}  // namespace

namespace real_driver_internal {

constinit std::atomic<const RealDriver*> g_driver{nullptr};
constinit std::atomic<bool> g_left_to_driver{false};

const RealDriver* find() {
  if (!find_driver(cuda_table(), &g_addresses)) return nullptr;
  g_driver.store(&g_addresses, std::memory_order_release);
  return &g_addresses;
}

}  // namespace real_driver_internal
}  // namespace gcr::preload
