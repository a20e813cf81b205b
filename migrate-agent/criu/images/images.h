// CRIU's images directory. Images may come from another host: every length is checked.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/transfer/images/block.h"
#include "src/base/address_ranges.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu::images {

inline constexpr char kFilesImage[] = "files.img";  ///< names files
/// The second words of a core-*.img, of pstree.img, kFilesImage and a tcp-stream-*.img.
inline constexpr std::uint32_t kCoreMagic = 0x55053847;
inline constexpr std::uint32_t kProcessTreeMagic = 0x50273030;
inline constexpr std::uint32_t kFilesMagic = 0x56303138;
inline constexpr std::uint32_t kTcpStreamMagic = 0x51465506;

/// The whole content of an image of a dump that is still with the agent, by CRIU's name for it.
using ReadImage = std::function<Result<std::string>(const std::string& name)>;
using WriteImage = std::function<Status(const std::string& name, const std::string& content)>;

/// The whole of a file. kNotFound if it is missing.
Result<std::string> read_file(const std::filesystem::path& path);
/// Replaces a file.
Status write_file(const std::filesystem::path& path, const std::string& content);
/// An unnamed file with the content of an image, positioned at its start.
Result<UniqueFd> in_memory(const std::string& name, const std::string& content);

/// The first record of an image, or all. kDataLoss if what is asked for is not whole.
Result<std::string> record_in(const std::string& image, std::uint32_t magic);
Result<std::vector<std::string>> records_in(const std::string& image, std::uint32_t magic);

/// kDataLoss: the image at `path` is damaged.
Error damaged(const std::filesystem::path& path);

/// All records of the image at `path`, which has this content. damaged() if it is not whole.
template <class Entry>
Result<std::vector<Entry>> entries_in(const std::string& image, std::uint32_t magic,
                                      const std::filesystem::path& path) {
  const auto records = records_in(image, magic);
  if (!records) return damaged(path);
  std::vector<Entry> entries;
  for (const std::string& record : *records) {
    if (!entries.emplace_back().ParseFromString(record)) return damaged(path);
  }
  return entries;
}

/// An image with one record, or several.
std::string image_of(std::uint32_t magic, const std::string& record);
std::string image_of(std::uint32_t magic, const std::vector<std::string>& records);
template <class Entry>
std::string image_of(std::uint32_t magic, const std::vector<Entry>& entries) {
  std::vector<std::string> records;
  for (const Entry& entry : entries) records.push_back(entry.SerializeAsString());
  return image_of(magic, records);
}

/// The names of images with memory of a process that CRIU left out, by its PID in its own PID
/// namespace: this, "-", a number from 0 and ".img". A byte has its address as its offset.
std::string memory_images(pid_t in_namespace);
inline constexpr std::string_view kMemoryImages = gcr::images::kPrivateMemory;

/// The image that says which of that memory the process had in the end: outside it the images may
/// have what is not true any more, within it a hole is zeros. Whole pages, ascending, disjoint;
/// a page map as CRIU's, without a head.
std::string memory_map(pid_t in_namespace);
std::string image_of_ranges(std::span<const AddressRange> ranges);
/// kDataLoss if the image at `path` is none of ranges, kNotFound if it is missing.
Result<AddressRanges> read_ranges(const std::filesystem::path& path);
/// The process whose memory an image of this name has. kDataLoss if the name has another form.
Result<pid_t> process_of_memory(std::string_view name);

/// The same for memory that processes share, by its number in CRIU's images: its inode at the
/// source. An offset is one in that memory.
std::string shared_memory_images(std::uint32_t number);
std::string shared_memory_map(std::uint32_t number);
/// The number in a name of either kind. kDataLoss if the name has another form.
Result<std::uint32_t> number_of_shared_memory(std::string_view name);
Result<std::uint32_t> number_of_shared_map(std::string_view name);
inline constexpr std::string_view kSharedMaps = "shared-map-";  ///< how all maps of it begin

/// The sizes of the memories that CRIU makes for processes to map, by number. kDataLoss if the
/// image is not whole; none if it is missing.
Result<std::map<std::uint32_t, std::uint64_t>> shared_memories(
    const std::filesystem::path& directory);

/// A private mapping of a task.
struct PrivateMapping {
  AddressRange range;
  std::uint64_t region_offset;  ///< where CRIU maps it first, in a region for all of them
  bool plain;                   ///< anonymous, and nothing else is special about it
};
struct PrivateMappings {
  std::uint64_t region_bytes = 0;
  std::vector<PrivateMapping> mappings{};
};
/// Those that CRIU 4.1 and 4.2 map beforehand, if they do. kDataLoss if the image is not whole or
/// has more than 1 MiB, kNotFound if it is missing.
Result<PrivateMappings> private_mappings(const std::filesystem::path& directory,
                                         pid_t in_namespace);

/// Makes CRIU map the private mappings of a task before it forks the task's children, as it does
/// if the images have a parent: makes an empty one in `directory`.
Status map_beforehand(const std::filesystem::path& directory, pid_t in_namespace);

/// Names of the image files (*.img) in `directory`, sorted: the files to send. Without logs.
std::vector<std::string> names(const std::filesystem::path& directory);

/// Every PID that the dumped tree uses in its PID namespace: processes, threads, process groups,
/// sessions. kDataLoss if pstree.img is not whole, kNotFound if it is missing.
Result<std::set<pid_t>> used_pids(const std::filesystem::path& directory);
/// That of the tree's root. Errors as above.
Result<pid_t> root_pid(const std::filesystem::path& directory);

/// Where the kernel writes each time a thread moves to another CPU, its struct rseq: those of all
/// threads, ascending, by the PID of their process. Every process of the tree is there; a zombie
/// has no area. Errors as above, also for a thread's core image; kDataLoss too if that gives an
/// area of more than 4096 bytes or beyond the last address.
Result<std::map<pid_t, AddressRanges>> rseq_areas(const std::filesystem::path& directory);

/// The names of files that CRIU would open, but not of removed ones. kDataLoss if an image is not
/// whole, or names files in a way that our dumps do not.
Result<std::set<std::string>> file_names(const std::filesystem::path& directory);

/// Gives removed files, which CRIU would make again in their old directories, names in `there`.
/// Whether there are any; kDataLoss as above.
Result<bool> rename_removed_files(const std::filesystem::path& directory,
                                  const std::filesystem::path& there);
/// The content of kFilesImage with other names. kDataLoss if it is not whole.
Result<std::string> rename_files(const std::string& image,
                                 const std::map<std::string, std::string>& renamed);

/// Checks that every image of memory in `directory` has as many pages as its page map says: CRIU
/// would look for missing ones forever. kDataLoss if not.
Status check_memory(const std::filesystem::path& directory);

}  // namespace gcr::criu::images
