// Machines with software GPUs, and processes on them, for tests that need more than one process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/unique_fd.h"

namespace gcr::softgpu::test {

inline const std::string kGpuA = "aaaaaaaa-0000-4000-8000-000000000001";
inline const std::string kGpuB = "bbbbbbbb-0000-4000-8000-000000000002";
inline const std::string kAmdGpuA = "aaaaaaaa00000001";
inline const std::string kAmdGpuB = "bbbbbbbb00000002";

/// A store and a list of devices. The store is unmounted and removed at the end.
class Machine {
 public:
  struct Gpu {
    std::string uuid;
    std::string size;
  };
  explicit Machine(std::vector<Gpu> gpus);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const std::string& store() const { return store_; }
  const std::string& uuid(std::size_t index) const { return gpus_[index].uuid; }
  /// "SOFTGPU_STORE=...", "SOFTGPU_DEVICES=..."
  std::vector<std::string> environment() const;
  /// VRAM in use, as the kernel counts it.
  std::uint64_t used_bytes(std::size_t index) const;

 private:
  std::string store_;
  std::vector<Gpu> gpus_;
};

/// A file in /dev for SOFTGPU_DEVICE_FILE, with a name like the real driver's. Removed at the end.
class DeviceNode {
 public:
  DeviceNode();
  ~DeviceNode();
  DeviceNode(const DeviceNode&) = delete;
  DeviceNode& operator=(const DeviceNode&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A child process whose standard input and output end here. Killed at the end.
class Process {
 public:
  Process(const Machine& machine, std::vector<std::string> command);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void send(const std::string& line);
  /// The next line; "" at the end of the output.
  std::string receive();
  /// There is data to receive now.
  bool has_output() const;
  /// send and receive.
  std::string ask(const std::string& line);
  void signal(int number);
  /// Waits for the end; the wait status.
  int wait();

 private:
  pid_t pid_ = -1;
  UniqueFd input_;
  UniqueFd output_;
  std::string buffered_;
};

/// The lines of /proc/<pid>/maps and the targets of its descriptors that contain a path.
std::vector<std::string> mappings_of(pid_t pid);
std::vector<std::string> descriptors_of(pid_t pid);

}  // namespace gcr::softgpu::test
