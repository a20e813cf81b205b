// Fills restored processes with the memory that came separately from the CRIU images: as sparse
// files, private-memory-PID-N.img, in the directory of the images. PID is that of the process in
// its own PID namespace, an offset in the file is an address. A hole is memory that stays as CRIU
// restored it. All of it may come from another host: names, addresses and lengths are checked.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "src/base/address_ranges.h"
#include "src/base/result.h"

namespace gcr::criu {

/// Memory of a process that is to be written from a file.
struct MemoryFromFile {
  pid_t pid;  ///< in the caller's PID namespace
  std::string path;
  AddressRanges where;      ///< in the process; the rest of the file is ignored
  std::uint64_t shift = 0;  ///< from an address to its place in the file, modulo 2^64
};

/// Memory that does not come from the images.
struct Elsewhere {
  /// What is not written from images, by the PID of the process in its own namespace.
  std::map<pid_t, AddressRanges> in_place;
  std::vector<MemoryFromFile> sources;  ///< all of it is in these files, which have no holes there
};

/// Writes the data of all files, on up to 16 threads; holes leave what is there. Errors as below.
Status fill_from_files(const std::vector<MemoryFromFile>& memories);

/// Writes the data of every private-memory-PID-N.img in `directory` into its process, one of
/// `processes`, which are by PID in their own namespace. Without such a file it succeeds and reads
/// nothing else. What is `elsewhere` is written from there, or left as it is.
///
/// Call it while CRIU holds all restored threads and none has run; they must not run before it
/// returns. The caller needs the right to ptrace them and need not be the tracer. What
/// images::rseq_areas() gives is left as it is, because the kernel has written there. A process
/// that is not in pstree.img has ended since its memory was sent: nothing is filled.
///
/// After a failure, any part of the memory may be filled: the processes must not run. kDataLoss if
/// a name has another form, if a process is in pstree.img and not in `processes`, if its memory
/// at an address of the file is not mapped or not writable, or if an image is damaged; kNotFound if
/// an image is missing; errors of the kernel. Blocks, and works on up to 16 threads.
Status fill_memory(const std::filesystem::path& directory, const std::map<pid_t, pid_t>& processes,
                   const Elsewhere& elsewhere = {});

}  // namespace gcr::criu
