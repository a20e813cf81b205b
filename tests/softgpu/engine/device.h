// Devices of the software GPU. The VRAM of a device is a tmpfs of its own, so that the kernel
// accounts for used and free memory, across processes, and a killed process's VRAM is free at once:
// every physical allocation is an unnamed file (O_TMPFILE) in there.
//
// Only a directory descriptor of the tmpfs is kept: a restore passes such descriptors to the
// process, so paths and mount namespaces do not matter to it.
#pragma once

#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "src/base/unique_fd.h"
#include "src/base/uuid.h"
#include "tests/softgpu/engine/result.h"

namespace gcr::softgpu {

inline constexpr int kMaxDevices = 16;
/// The vendor of the simulated GPU. NVIDIA's are named by a UUID; AMD's by 16 hexadecimal digits,
/// which, as text, are the bytes of their UUID.
enum class Vendor : std::int32_t { kNvidia = 0, kAmd = 1 };

inline constexpr int kHostNumaNode = 0;  ///< the only one, regardless of the machine

/// One device: its name, its size and the directory that is its VRAM.
class Device {
 public:
  Uuid uuid;
  std::uint64_t total_bytes = 0;
  UniqueFd directory;
  dev_t file_system = 0;
  /// False: a plain directory (no root): `used_bytes` of this process is then the only account.
  bool mounted = false;
  /// For a process that saw only some of its machine's GPUs: the index of this one when it started.
  std::optional<Uuid> first;
  /// The index of this GPU on its machine, as a process counts them that starts now. NVIDIA's
  /// driver reports it for imported memory, regardless of the GPU's index in the process since a
  /// restore onto others (measured: H200, driver 580).
  int place = 0;
  std::atomic<std::uint64_t> used_bytes = 0;

  Device() = default;
  Device(Device&& other) noexcept { *this = std::move(other); }
  Device& operator=(Device&& other) noexcept;

  /// Whether the driver refuses to import memory of it, as NVIDIA's does after a restore.
  bool is_strange() const { return first && *first != uuid; }

  /// Opens (and, as root, mounts if nothing is mounted yet) `<store>/<name>`. Both fields above
  /// must be set. Fails with Result::kSystemNotReady.
  Result open(const std::string& store, const std::string& name);

  /// Adopts a directory of a tmpfs that another process opened.
  Result adopt(UniqueFd tmpfs_directory);

  /// A file of `bytes` bytes, all of them allocated, or Result::kOutOfMemory. No heap is used.
  /// The caller pairs it with release() once file and mappings are gone.
  Result create_file(std::uint64_t bytes, UniqueFd* file);
  void release(std::uint64_t bytes) { used_bytes -= bytes; }

  std::uint64_t free_bytes() const;
};

/// Memory of the host: a file of `bytes` bytes, all of them allocated, or
/// Result::kOutOfMemory. No heap is used.
Result create_host_file(std::uint64_t bytes, UniqueFd* file);
/// Whether the descriptor, from any process, is of such a file.
bool is_host_file(int file);

/// The traces of the real driver's device files in a process, which a forked child inherits: an
/// open file and a shared mapping of it. Nothing unless SOFTGPU_DEVICE_FILE names a file.
class DeviceFile {
 public:
  /// Fails with Result::kSystemNotReady. No heap is used.
  Result open();
  void close();
  /// Forgets the open file, and leaves it open.
  void leave_open();

 private:
  UniqueFd file_;
  UniqueMapping page_;
};

/// The machine's devices of one vendor, by ordinal.
struct DeviceTable {
  std::array<Device, kMaxDevices> devices;
  int count = 0;
  Vendor vendor = Vendor::kNvidia;

  /// Reads SOFTGPU_DEVICES and SOFTGPU_STORE and opens every device of the vendor. kNoDevice if
  /// there is none.
  Result load_from_environment();

  /// In the vendor's notation, without "GPU-".
  std::string name_of(const Uuid& uuid) const;
  bool has(int ordinal) const { return ordinal >= 0 && ordinal < count; }
  Device* at(int ordinal) { return has(ordinal) ? &devices[ordinal] : nullptr; }
  int find(const Uuid& uuid) const;

  /// The ordinal of the device that holds this file, or -1 if it is no file of a device.
  int holder_of(int file) const;
};

}  // namespace gcr::softgpu
