// A sysfs tree with AMD GPUs, as the kernel creates it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace gcr {

/// Made in a temporary directory, and removed with the object.
class SysfsTree {
 public:
  /// The values that differ between the nodes of tests; the rest of a node's properties is the
  /// same.
  struct Node {
    unsigned number = 1;
    std::uint32_t gpu_id = 1;
    std::string gfx_target_version = "90402";
    std::uint32_t device_id = 0x74a1;
    std::uint32_t location_id = 0x500;
    std::uint32_t render_minor = 128;
    std::uint64_t unique_id = 0;
    unsigned num_xcc = 1;
    std::uint64_t vram_bytes = 0;
    unsigned firmware = 177;
  };

  SysfsTree() {
    std::string path = (std::filesystem::temp_directory_path() / "gcr-sysfs-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
    std::filesystem::permissions(root_, std::filesystem::perms{0755});
  }
  ~SysfsTree() { std::filesystem::remove_all(root_); }
  SysfsTree(const SysfsTree&) = delete;
  SysfsTree& operator=(const SysfsTree&) = delete;

  /// The replacement of /sys.
  const std::filesystem::path& path() const { return root_; }

  void write(const std::string& path, const std::string& content) const {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
  }

  static std::string node_path(unsigned number) {
    return "class/kfd/kfd/topology/nodes/" + std::to_string(number) + "/";
  }

  void add_cpu(unsigned number) const {
    write(node_path(number) + "gpu_id", "0\n");
    write(node_path(number) + "properties",
          "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n");
  }

  /// In the order and format of node_show() in the kernel.
  void add_gpu(const Node& node) const {
    const std::string path = node_path(node.number);
    write(path + "gpu_id", std::to_string(node.gpu_id) + "\n");
    write(path + "name", "ip discovery\n");
    write(path + "properties",
          fmt::format("cpu_cores_count 0\nsimd_count 1216\nmem_banks_count 1\ncaches_count 626\n"
                      "io_links_count 1\nwave_front_size 64\ngfx_target_version {}\n"
                      "vendor_id 4098\ndevice_id {}\nlocation_id {}\ndomain 0\n"
                      "drm_render_minor {}\nhive_id 0\nlocal_mem_size 0\nfw_version {}\n"
                      "capability 2893521536\ndebug_prop 1511\nsdma_fw_version 22\n"
                      "unique_id {}\nnum_xcc {}\nmax_engine_clk_ccompute 3700\n",
                      node.gfx_target_version, node.device_id, node.location_id, node.render_minor,
                      node.firmware, node.unique_id, node.num_xcc));
    write(path + "mem_banks/0/properties",
          fmt::format("heap_type 1\nsize_in_bytes {}\nflags 0\nwidth 8192\nmem_clk_max 1300\n",
                      node.vram_bytes));
  }

  /// The PCI device of a GPU, with these files.
  void add_board(const std::string& address, std::uint32_t device_id,
                 const std::vector<std::pair<std::string, std::string>>& files) const {
    const std::string path = "bus/pci/devices/" + address + "/";
    write(path + "vendor", "0x1002\n");
    write(path + "device", fmt::format("0x{:04x}\n", device_id));
    for (const auto& [name, content] : files) write(path + name, content);
  }

 private:
  std::filesystem::path root_;
};

}  // namespace gcr
