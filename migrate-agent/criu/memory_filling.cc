#include "migrate-agent/criu/memory_filling.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <string>
#include <vector>

#include "migrate-agent/criu/images.h"
#include "src/base/side_by_side.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kFillBytes = 4 * kMiB;
constexpr std::size_t kMostFillers = 16;

struct MemoryFile {
  std::string name;
  pid_t process;  ///< in its PID namespace
};

/// The files with memory, and whose it is.
Result<std::vector<MemoryFile>> memory_files(const fs::path& directory) {
  std::vector<MemoryFile> files;
  for (const std::string& name : images::names(directory)) {
    if (!name.starts_with(images::kMemoryImages)) continue;
    const char* const end = name.data() + name.size();
    pid_t pid = 0;
    unsigned part = 0;
    const char* const dash =
        std::from_chars(name.data() + images::kMemoryImages.size(), end, pid).ptr;
    if (dash != end) std::from_chars(dash + 1, end, part);
    if (pid <= 0 || name != fmt::format("{}-{}.img", images::memory_images(pid), part)) {
      return Error(Code::kDataLoss, fmt::format("\"{}\" does not name the memory of a process",
                                                (directory / name).string()));
    }
    files.push_back({name, pid});
  }
  return files;
}

/// The memory of all processes, in pieces; a piece is written by one thread.
class MemoryFilling {
 public:
  /// Adds the data in the file `path` except for `kept`, which is sorted.
  Status add(const fs::path& path, pid_t pid, std::span<const AddressRange> kept) {
    const Memory& memory = memories_.emplace_back(pid, path.string());
    GCR_ASSIGN(const UniqueFd file, open(memory));
    for (off_t start = 0, end = 0;; start = end) {
      start = ::lseek(file.get(), start, SEEK_DATA);
      if (start < 0 && errno == ENXIO) return {};
      if (start >= 0) end = ::lseek(file.get(), start, SEEK_HOLE);
      if (start < 0 || end < 0) return Error::from_errno(errno, "cannot read " + memory.path);
      cut(static_cast<std::uint64_t>(start), static_cast<std::uint64_t>(end), kept);
    }
  }

  Status fill() const {
    return share_out(pieces_.size(), kMostFillers, [this](std::size_t i) {
      return fill_piece(memories_[pieces_[i].memory], pieces_[i]);
    });
  }

 private:
  struct Memory {
    pid_t pid;
    std::string path;
  };
  struct Piece {
    std::size_t memory;
    std::uint64_t start;
    std::uint64_t end;
  };

  /// Adds pieces for an extent of the last memory. Extents come in the order of addresses: areas
  /// before this one are taken off `kept`.
  void cut(std::uint64_t start, std::uint64_t end, std::span<const AddressRange>& kept) {
    while (start < end) {
      while (!kept.empty() && kept.front().end <= start) kept = kept.subspan(1);
      const std::uint64_t next_kept = kept.empty() ? end : kept.front().start;
      if (next_kept <= start) {
        start = kept.front().end;
        continue;
      }
      const std::uint64_t stop = std::min({end, start + kFillBytes, next_kept});
      pieces_.push_back({memories_.size() - 1, start, stop});
      start = stop;
    }
  }

  static Status fill_piece(const Memory& memory, const Piece& piece) {
    static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t first = piece.start / page * page;
    GCR_ASSIGN(const UniqueFd file, open(memory));
    void* at = ::mmap(nullptr, piece.end - first, PROT_READ, MAP_SHARED | MAP_POPULATE, file.get(),
                      static_cast<off_t>(first));
    if (at == MAP_FAILED) return Error::from_errno(errno, "cannot map " + memory.path);
    const UniqueMapping mapping(at, piece.end - first);
    for (std::uint64_t done = piece.start; done < piece.end;) {
      iovec here{mapping.bytes().data() + (done - first), piece.end - done};
      iovec there{reinterpret_cast<void*>(done), piece.end - done};
      const ssize_t written = ::process_vm_writev(memory.pid, &here, 1, &there, 1, 0);
      if (written <= 0) return refusal(written < 0 ? errno : EFAULT, memory, done);
      done += static_cast<std::uint64_t>(written);
    }
    return {};
  }

  /// For a short time: there may be more files than descriptors.
  static Result<UniqueFd> open(const Memory& memory) {
    UniqueFd file(::open(memory.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return Error::from_errno(errno, "cannot open " + memory.path);
    return file;
  }

  static Error refusal(int problem, const Memory& memory, std::uint64_t address) {
    const std::string doing =
        fmt::format("cannot write {} into process {} at {:#x}", memory.path, memory.pid, address);
    if (problem != EFAULT) return Error::from_errno(problem, doing);
    return Error(Code::kDataLoss, doing + ": no writable memory");
  }

  std::vector<Memory> memories_;
  std::vector<Piece> pieces_;
};

}  // namespace

Status fill_memory(const fs::path& directory, const std::map<pid_t, pid_t>& processes) {
  GCR_ASSIGN(const auto files, memory_files(directory));
  if (files.empty()) return {};
  GCR_ASSIGN(const auto kept, images::rseq_areas(directory));
  MemoryFilling filling;
  for (const MemoryFile& file : files) {
    const fs::path path = directory / file.name;
    const auto areas = kept.find(file.process);
    const auto process = processes.find(file.process);
    if (areas == kept.end() || process == processes.end()) {
      return Error(Code::kDataLoss, path.string() + ": CRIU restored no such process");
    }
    GCR_TRY(filling.add(path, process->second, areas->second));
  }
  return filling.fill();
}

}  // namespace gcr::criu
