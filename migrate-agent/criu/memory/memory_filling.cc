#include "migrate-agent/criu/memory/memory_filling.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "migrate-agent/criu/images/images.h"
#include "src/base/side_by_side.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPieceBytes = kMiB;
constexpr std::size_t kMostFillers = 16;

using Memory = MemoryFromFile;

/// The files with memory, by the PID of their process in its own namespace.
Result<std::map<pid_t, std::vector<fs::path>>> memory_files(const fs::path& directory) {
  std::map<pid_t, std::vector<fs::path>> files;
  for (const std::string& name : images::names(directory)) {
    if (!name.starts_with(images::kMemoryImages)) continue;
    GCR_ASSIGN(const pid_t pid, images::process_of_memory(name));
    files[pid].push_back(directory / name);
  }
  return files;
}

/// For a short time: there may be more files than descriptors.
Result<UniqueFd> open(const Memory& memory) {
  UniqueFd file(::open(memory.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "cannot open " + memory.path);
  return file;
}

Error cannot_read(const Memory& memory) {
  return Error::from_errno(errno, "cannot read " + memory.path);
}

/// The addresses of a file's first data at `start` or beyond it; empty at the end of the file.
Result<AddressRange> next_data(const UniqueFd& file, const Memory& memory, std::uint64_t start) {
  const off_t data = ::lseek(file.get(), static_cast<off_t>(start + memory.shift), SEEK_DATA);
  if (data < 0 && errno == ENXIO) return AddressRange{};
  const off_t hole = data < 0 ? data : ::lseek(file.get(), data, SEEK_HOLE);
  if (hole < 0) return cannot_read(memory);
  return AddressRange{static_cast<std::uint64_t>(data) - memory.shift,
                      static_cast<std::uint64_t>(hole) - memory.shift};
}

/// Copies from a file into a process, by a buffer that stays in the processor's cache: to map the
/// file instead costs three times as much with 16 threads, which then wait for each other.
class Copier {
 public:
  Copier(const Memory& memory, const UniqueFd& file) : memory_(memory), file_(file) {}

  /// What the file has in `range`, which may take until finish().
  Status copy(const AddressRange& range) {
    for (std::uint64_t at = range.start; at < range.end;) {
      const std::size_t length = std::min(range.end - at, buffer_.size() - used_);
      if (::pread(file_.get(), buffer_.data() + used_, length,
                  static_cast<off_t>(at + memory_.shift)) != static_cast<ssize_t>(length)) {
        return cannot_read(memory_);
      }
      there_[parts_++] = {reinterpret_cast<void*>(at), length};
      used_ += length;
      at += length;
      if (used_ == buffer_.size() || parts_ == there_.size()) GCR_TRY(finish());
    }
    return {};
  }

  Status finish() {
    if (parts_ == 0) return {};
    const iovec here{buffer_.data(), used_};
    const ssize_t written = ::process_vm_writev(memory_.pid, &here, 1, there_.data(), parts_, 0);
    if (written != static_cast<ssize_t>(used_)) return refusal(written);
    used_ = 0;
    parts_ = 0;
    return {};
  }

 private:
  Error refusal(ssize_t written) const {
    const int problem = written < 0 ? errno : EFAULT;
    std::size_t part = 0;
    for (auto left = static_cast<std::size_t>(std::max<ssize_t>(written, 0));
         part + 1 < parts_ && left >= there_[part].iov_len; ++part) {
      left -= there_[part].iov_len;
    }
    const std::string doing = fmt::format("cannot write {} into process {} at {}", memory_.path,
                                          memory_.pid, fmt::ptr(there_[part].iov_base));
    if (problem != EFAULT) return Error::from_errno(problem, doing);
    return Error(Code::kDataLoss, doing + ": no writable memory");
  }

  const Memory& memory_;
  const UniqueFd& file_;
  std::array<std::byte, 256 * kKiB> buffer_;
  std::size_t used_ = 0;
  std::array<iovec, 64> there_;
  std::size_t parts_ = 0;
};

/// The memory of all processes, in pieces; a piece is written by one thread.
class MemoryFilling {
 public:
  /// Adds all of a file that has no holes.
  void add_all(Memory memory) {
    for (AddressRange range : memory.where) {
      while (range.start < range.end) {
        const std::uint64_t end = (range.start / kPieceBytes + 1) * kPieceBytes;
        pieces_.push_back({memories_.size(), {range.start, std::min(end, range.end)}, true});
        range.start = pieces_.back().range.end;
      }
    }
    memories_.push_back(std::move(memory));
  }

  /// Adds the data in a file.
  Status add(Memory memory) {
    memories_.push_back(std::move(memory));
    GCR_ASSIGN(const UniqueFd file, open(memories_.back()));
    for (std::uint64_t start = 0 - memories_.back().shift;; start = pieces_.back().range.end) {
      GCR_ASSIGN(const AddressRange data, next_data(file, memories_.back(), start));
      if (data.bytes() == 0) return {};
      const std::uint64_t end = (data.start / kPieceBytes + 1) * kPieceBytes;
      pieces_.push_back({memories_.size() - 1, {data.start, end}});
    }
  }

  Status fill() const {
    return share_out(pieces_.size(), kMostFillers, [this](std::size_t i) {
      return fill_piece(memories_[pieces_[i].memory], pieces_[i]);
    });
  }

 private:
  struct Piece {
    std::size_t memory;
    AddressRange range;
    bool all = false;  ///< to be filled as it is
  };

  static Status fill_piece(const Memory& memory, const Piece& one) {
    GCR_ASSIGN(const UniqueFd file, open(memory));
    Copier copier(memory, file);
    const AddressRange& piece = one.range;
    if (one.all) {
      GCR_TRY(copier.copy(piece));
      return copier.finish();
    }
    auto range = std::ranges::upper_bound(memory.where, piece.start, {}, &AddressRange::end);
    for (; range != memory.where.end() && range->start < piece.end; ++range) {
      const std::uint64_t stop = std::min(range->end, piece.end);
      for (std::uint64_t at = std::max(range->start, piece.start); at < stop;) {
        GCR_ASSIGN(const AddressRange data, next_data(file, memory, at));
        if (data.bytes() == 0) return copier.finish();
        at = std::min(data.end, stop);
        if (data.start < at) GCR_TRY(copier.copy({data.start, at}));
      }
    }
    return copier.finish();
  }

  std::vector<Memory> memories_;
  std::vector<Piece> pieces_;
};

}  // namespace

Status fill_from_files(const std::vector<MemoryFromFile>& memories) {
  MemoryFilling filling;
  for (const MemoryFromFile& memory : memories) GCR_TRY(filling.add(memory));
  return filling.fill();
}

Status fill_memory(const fs::path& directory, const std::map<pid_t, pid_t>& processes,
                   const Elsewhere& elsewhere) {
  GCR_ASSIGN(const auto files, memory_files(directory));
  if (files.empty()) return {};
  GCR_ASSIGN(const auto kept, images::rseq_areas(directory));
  MemoryFilling filling;
  for (const auto& [inner, paths] : files) {
    const auto areas = kept.find(inner);
    const auto process = processes.find(inner);
    if (areas == kept.end()) continue;
    if (process == processes.end()) {
      return Error(Code::kDataLoss, paths.front().string() + ": CRIU restored no such process");
    }
    GCR_ASSIGN(const auto map, images::read_ranges(directory / images::memory_map(inner)));
    AddressRanges where = difference(map, areas->second);
    const auto in_place = elsewhere.in_place.find(inner);
    if (in_place != elsewhere.in_place.end()) where = difference(where, in_place->second);
    for (const fs::path& path : paths) {
      GCR_TRY(filling.add({process->second, path.string(), where}));
    }
  }
  for (const MemoryFromFile& source : elsewhere.sources) filling.add_all(source);
  return filling.fill();
}

}  // namespace gcr::criu
