#include "src/base/executable.h"

#include <link.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace gcr {
namespace {

/// An address inside the program itself, not in a library: its program headers as the loader maps
/// them. The vector's AT_PHDR would be the loader's where that was started by hand.
std::uintptr_t address_in_program() {
  std::uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        *static_cast<std::uintptr_t*>(found) = reinterpret_cast<std::uintptr_t>(info->dlpi_phdr);
        return 1;  // the first entry is the program
      },
      &address);
  return address;
}

}  // namespace

Result<std::filesystem::path> executable_path() {
  const std::uintptr_t address = address_in_program();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    char dash = 0;
    std::string permissions, offset, device, inode, path;
    fields >> std::hex >> first >> dash >> last >> permissions >> offset >> device >> inode;
    if (!fields || address < first || address >= last) continue;
    std::getline(fields >> std::ws, path);
    if (!path.empty() && path[0] == '/') return std::filesystem::path(path);
  }
  return Error(Code::kNotFound,
               "cannot find this program's file: /proc/self/maps does not list it");
}

}  // namespace gcr
