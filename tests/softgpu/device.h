// Devices of the software GPU. The VRAM of a device is a tmpfs of its own, so that what is used and
// what is free is the kernel's own account, across processes, and a killed process's VRAM is free
// at once: every physical allocation is an unnamed file (O_TMPFILE) in there.
//
// Only a directory descriptor of the tmpfs is kept: whoever restores a process hands such
// descriptors over, so paths and mount namespaces do not matter to it.
#pragma once

#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "preload/cuda/abi/driver_abi.h"
#include "src/base/unique_fd.h"
#include "src/base/uuid.h"

namespace gcr::softgpu {

inline constexpr int kMaxDevices = 16;
inline constexpr int kHostNumaNode = 0;  ///< the only one, whatever the machine has

/// One device: its name, its size and the directory that is its VRAM.
class Device {
 public:
  Uuid uuid;
  std::uint64_t total_bytes = 0;
  UniqueFd directory;
  dev_t file_system = 0;
  /// False: a plain directory (no root): `used_bytes` of this process is then the only account.
  bool mounted = false;
  std::atomic<std::uint64_t> used_bytes = 0;

  Device() = default;
  Device(Device&& other) noexcept { *this = std::move(other); }
  Device& operator=(Device&& other) noexcept;

  /// Opens (and, as root, mounts where nothing is mounted yet) `<store>/<uuid>`. Both fields above
  /// must be set. Fails with CUDA_ERROR_SYSTEM_NOT_READY.
  CUresult open(const std::string& store);

  /// Adopts a directory of a tmpfs that another process opened.
  CUresult adopt(UniqueFd tmpfs_directory);

  /// A file of `bytes` bytes, all of them allocated, or CUDA_ERROR_OUT_OF_MEMORY. No heap is used.
  /// The caller pairs it with release() once file and mappings are gone.
  CUresult create_file(std::uint64_t bytes, UniqueFd* file);
  void release(std::uint64_t bytes) { used_bytes -= bytes; }

  std::uint64_t free_bytes() const;
};

/// Memory of the host for cuMemCreate: a file of `bytes` bytes, all of them allocated, or
/// CUDA_ERROR_OUT_OF_MEMORY. No heap is used.
CUresult create_host_file(std::uint64_t bytes, UniqueFd* file);
/// Whether the descriptor, from whatever process, is of such a file.
bool is_host_file(int file);

/// What a process has of the real driver's device files, and a forked child inherits: an open file
/// and a shared mapping of it. Nothing unless SOFTGPU_DEVICE_FILE names a file.
class DeviceFile {
 public:
  /// Fails with CUDA_ERROR_SYSTEM_NOT_READY. No heap is used.
  CUresult open();
  void close();

 private:
  UniqueFd file_;
  UniqueMapping page_;
};

/// The machine's devices, by ordinal.
struct DeviceTable {
  std::array<Device, kMaxDevices> devices;
  int count = 0;

  /// Reads SOFTGPU_DEVICES and SOFTGPU_STORE and opens every device.
  CUresult load_from_environment();

  bool has(int ordinal) const { return ordinal >= 0 && ordinal < count; }
  Device* at(int ordinal) { return has(ordinal) ? &devices[ordinal] : nullptr; }
  int find(const Uuid& uuid) const;

  /// The ordinal of the device that holds this file, or -1 if it is no file of a device.
  int holder_of(int file) const;
};

}  // namespace gcr::softgpu
