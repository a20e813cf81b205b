#include "preload/hip/real_hip.h"

#include "preload/hip/hip_table.h"

namespace gcr::preload {
namespace {

constinit RealHip g_hip_addresses;

}  // namespace

namespace real_hip_internal {

constinit std::atomic<const RealHip*> g_hip{nullptr};
constinit std::atomic<bool> g_left_to_hip{false};

const RealHip* find() {
  if (!find_driver(hip_table(), &g_hip_addresses)) return nullptr;
  g_hip.store(&g_hip_addresses, std::memory_order_release);
  return &g_hip_addresses;
}

}  // namespace real_hip_internal
}  // namespace gcr::preload
