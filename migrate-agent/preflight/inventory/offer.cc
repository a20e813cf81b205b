#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>

#include "migrate-agent/gpu/device/drivers/drivers.h"
#include "migrate-agent/linux/cgroups/devices.h"
#include "migrate-agent/linux/hostmem/landing_region.h"
#include "migrate-agent/preflight/inventory/vram.h"
#include "migrate-agent/preflight/inventory/host_state.h"

namespace gcr::inventory {

Result<proto::HostFacts> offer(const worker::Config& config) {
  GCR_ASSIGN(const auto driver, device::load_drivers(config.sysfs));
  proto::HostFacts facts;
  facts.set_slurm_node(config.slurm.node);
  utsname name{};
  if (::uname(&name) == 0) facts.set_kernel(name.release);
  if (auto bytes = hostmem::available_memory_bytes()) facts.set_memory_available_bytes(*bytes);
  if (auto bytes = hostmem::free_hugepage_bytes()) facts.set_hugepages_free_bytes(*bytes);
  FreeVram free_vram(driver, config.sysfs);
  const std::map<Uuid, std::string> nodes = cgroups::gpu_nodes();
  for (const device::GpuInfo& info : driver->gpus()) {
    if (info.vendor == device::Vendor::kNvidia) facts.set_driver_version(info.driver_version);
    proto::Gpu& gpu = *facts.add_gpus();
    gpu.set_uuid(to_bytes(info.uuid));
    gpu.set_name(info.name);
    gpu.set_total_bytes(info.total_bytes);
    gpu.set_allowed(config.allows(info.uuid));
    if (const auto node = nodes.find(info.uuid); node != nodes.end()) {
      gpu.set_device_file(node->second);
    }
    // A GPU without space for a context has no free VRAM to offer.
    gpu.set_free_bytes(free_vram.of(info.uuid).value_or(0));
  }
  return facts;
}

double load_per_core() {
  double one_minute = 0;
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (::getloadavg(&one_minute, 1) != 1 || cores < 1) return 0;
  return one_minute / static_cast<double>(cores);
}

}  // namespace gcr::inventory
