// CRIU's images directory as this project reads it. Images may come from another host: every length
// is checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "src/base/result.h"

namespace gcr::criu::images {

/// The second word of a core-*.img.
inline constexpr std::uint32_t kCoreMagic = 0x55053847;

/// The one record of an image file. kDataLoss if the file is not whole.
Result<std::string> read_record(const std::filesystem::path& path, std::uint32_t magic);

/// Replaces an image file by one with this record.
Status write_record(const std::filesystem::path& path, std::uint32_t magic,
                    const std::string& record);

/// Names of the image files (*.img) in `directory`, sorted: what has to travel. Logs are left out.
std::vector<std::string> names(const std::filesystem::path& directory);

/// Sum of the sizes of the image files.
std::uint64_t total_bytes(const std::filesystem::path& directory);

/// The first line with "Error (" in CRIU's log `name`, without its time stamp; else the first line
/// of what CRIU wrote to standard error; empty if there is neither.
std::string first_error(const std::filesystem::path& directory, const std::string& name);

/// Every number that the dumped tree uses in its PID namespace: processes, threads, process groups,
/// sessions. kDataLoss if pstree.img is not whole, kNotFound if it is missing.
Result<std::set<pid_t>> used_pids(const std::filesystem::path& directory);

}  // namespace gcr::criu::images
