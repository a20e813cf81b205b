// The RDMA devices of this machine, as far as a transfer can use them.
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
  std::string state;                   ///< for people: "active", "down", ...
  std::string link_layer;              ///< "InfiniBand" or "Ethernet" (RoCE, iWARP)
  double gigabits_per_second = 0;      ///< as the port reports; 0: unknown
  bool dma_buf = false;                ///< memory of other devices can be registered (GPUDirect)
  std::vector<std::string> addresses;  ///< of its interface here, as a sender would name them

  /// Whether a receiver can listen on it.
  bool usable() const { return active && !addresses.empty(); }
};

struct RdmaSurvey {
  std::vector<RdmaDevice> devices;
  /// Why none of them is usable: one sentence for an operator. Empty if one is.
  std::string reason;
};

/// The devices of this machine in the calling thread's network namespace. None is not an error.
/// Opens each device for a moment; takes milliseconds.
RdmaSurvey rdma_devices();

}  // namespace gcr::transport
