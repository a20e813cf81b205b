// The kernel's flags of a mapping.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace gcr::test {

/// The line "VmFlags" of the mapping at `address`, as in /proc/pid/smaps; "" if there is none.
inline std::string flags_at(pid_t pid, std::uint64_t address) {
  std::ifstream smaps("/proc/" + std::to_string(pid) + "/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uint64_t start = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &start, &end) == 2) {
      inside = start <= address && address < end;
    }
    if (inside && line.starts_with("VmFlags:")) return line;
  }
  return "";
}

}  // namespace gcr::test
