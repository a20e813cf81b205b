// The RDMA devices of this host, and whether a transfer can use them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/result.h"

namespace gcr::transport {

/// One port of a device.
struct RdmaDevice {
  std::string name;  ///< "mlx5_0"
  std::uint8_t port = 1;
  bool active = false;
  std::string state;                   ///< for display: "active", "down", ...
  std::string link_layer;              ///< "InfiniBand" or "Ethernet" (RoCE, iWARP)
  double gigabits_per_second = 0;      ///< as the port reports; 0: unknown
  bool dma_buf = false;                ///< memory of other devices can be registered (GPUDirect)
  std::vector<std::string> addresses;  ///< of its network interface, as a sender names them

  /// Whether a receiver can listen on it.
  bool usable() const { return active && !addresses.empty(); }
};

struct RdmaSurvey {
  std::vector<RdmaDevice> devices;
  /// Why no device is usable, as a sentence for the operator. Empty if one is.
  std::string reason;
};

/// Lists the devices in the calling thread's network namespace. An empty list is not an error.
/// Opens each device briefly; takes milliseconds.
RdmaSurvey rdma_devices();

}  // namespace gcr::transport
