#include "migrate-agent/process/layer/pack_writer.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/layer/beneath.h"
#include "migrate-agent/process/layer/content.h"
#include "src/base/raw_bytes.h"

namespace gcr::layer {
namespace {

constexpr std::size_t kReadBytes = 256 * kKiB;
constexpr std::size_t kWriteBytes = 64 * kKiB;

/// Holes are given to libarchive as zeros, which it leaves out: address space without memory.
constexpr std::size_t kHoleBytes = 1 * kGiB;

struct FreeWriting {
  void operator()(archive* one) const { ::archive_write_free(one); }
};
struct FreeHeader {
  void operator()(archive_entry* one) const { ::archive_entry_free(one); }
};
using Header = std::unique_ptr<archive_entry, FreeHeader>;

/// An archive that is being written. Not movable. If it is destroyed before it is closed, it stays
/// incomplete; libarchive would complete it with zeros.
class Archive {
 public:
  explicit Archive(int fd) : fd_(fd) {}
  ~Archive() { is_broken_ = true; }
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  Status open() {
    archive* const one = archive_.get();
    if (one == nullptr || ::archive_write_set_format_pax(one) != ARCHIVE_OK ||
        ::archive_write_set_format_option(one, "pax", "hdrcharset", "BINARY") != ARCHIVE_OK ||
        ::archive_write_set_format_option(one, "pax", "xattrheader", "SCHILY") != ARCHIVE_OK ||
        ::archive_write_add_filter_none(one) != ARCHIVE_OK ||
        ::archive_write_set_bytes_per_block(one, kWriteBytes) != ARCHIVE_OK ||
        ::archive_write_set_bytes_in_last_block(one, 1) != ARCHIVE_OK ||
        ::archive_write_open(one, this, nullptr, &Archive::write, nullptr) != ARCHIVE_OK) {
      return failed();
    }
    return {};
  }

  Status begin(const Header& header) {
    return ::archive_write_header(archive_.get(), header.get()) == ARCHIVE_OK ? Status() : failed();
  }

  Status add(const std::byte* bytes, std::size_t count) {
    while (count > 0) {
      const la_ssize_t written = ::archive_write_data(archive_.get(), bytes, count);
      if (written <= 0) return failed();
      bytes += written;
      count -= static_cast<std::size_t>(written);
    }
    return {};
  }

  Status close() {
    return ::archive_write_close(archive_.get()) == ARCHIVE_OK ? Status() : failed();
  }

 private:
  static la_ssize_t write(archive*, void* self, const void* bytes, std::size_t count) {
    Archive& one = *static_cast<Archive*>(self);
    if (one.is_broken_) return -1;
    ssize_t written = 0;
    do {
      written = ::write(one.fd_, bytes, count);
    } while (written < 0 && errno == EINTR);
    if (written >= 0) return written;
    one.error_ = errno;
    one.is_broken_ = true;
    return -1;
  }

  Error failed() const {
    if (error_ != 0) return Error::from_errno(error_, "cannot write the archive");
    const char* const why = archive_ ? ::archive_error_string(archive_.get()) : nullptr;
    return Error(Code::kIo, fmt::format("cannot write the archive: {}", why ? why : "no memory"));
  }

  const int fd_;
  bool is_broken_ = false;
  int error_ = 0;  ///< errno of the first write that failed
  const std::unique_ptr<archive, FreeWriting> archive_{::archive_write_new()};
};

Header header_of(const std::string& path, mode_t mode) {
  Header header(::archive_entry_new());
  ::archive_entry_copy_pathname(header.get(), path.empty() ? "." : path.c_str());
  ::archive_entry_set_mode(header.get(), mode);
  ::archive_entry_set_size(header.get(), 0);
  ::archive_entry_set_mtime(header.get(), 0, 0);
  return header;
}

class Writer {
 public:
  Writer(const Tree& tree, int fd, std::uint64_t max_bytes)
      : tree_(tree), max_bytes_(max_bytes), archive_(fd) {}

  Result<Packed> run(const Changes& changes) {
    void* const holes =
        ::mmap(nullptr, kHoleBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (holes == MAP_FAILED) return Error::from_errno(errno, "cannot reserve address space");
    holes_ = UniqueMapping(holes, kHoleBytes);
    GCR_TRY(archive_.open());
    for (const auto& [path, change] : changes) {
      const Status added = add(path, change);
      if (!added) return added.error().while_doing(shown_path(path));
    }
    GCR_TRY(archive_.close());
    return std::move(packed_);
  }

 private:
  Status add(const std::string& path, const Change& change) {
    if (change.action == Action::kRemove) {
      if (S_ISSOCK(change.entry.facts.mode)) {
        packed_.notes.add(fmt::format("the socket {} is not carried", shown_path(path)));
      }
      return add_marker(parent_of(path), std::string(kWhiteoutPrefix) + name_of(path));
    }
    const UniqueFd held = hold_beneath(tree_.view, path);
    const auto status = held ? look(held, "") : std::nullopt;
    // A mount point is the engine's: Trees lists it.
    if (!status && (is_gone(errno) || errno == EXDEV)) return {};
    if (!status) return Error::from_errno(errno, "cannot open it");
    if (((status->stx_mode ^ change.entry.facts.mode) & S_IFMT) != 0) return {};
    GCR_TRY(add_file(path, change.entry.facts, held, *status));
    return change.action == Action::kRebuild ? add_marker(path, kOpaqueName) : Status();
  }

  /// An empty file whose name has a meaning.
  Status add_marker(const std::string& directory, std::string_view name) {
    return archive_.begin(header_of(join(directory, name), S_IFREG | 0600));
  }

  Status add_file(const std::string& path, const Facts& facts, const UniqueFd& held,
                  const struct statx& status) {
    Header header = header_of(path, status.stx_mode);
    if (facts.links > 1) {
      const auto [first, is_first] = names_.try_emplace(facts.id, path);
      if (!is_first) {
        ::archive_entry_copy_hardlink(header.get(), first->second.c_str());
        return archive_.begin(header);
      }
    }
    ::archive_entry_set_uid(header.get(), status.stx_uid);
    ::archive_entry_set_gid(header.get(), status.stx_gid);
    ::archive_entry_set_mtime(header.get(), status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec);
    for (const auto& [name, value] : facts.attributes) {
      ::archive_entry_xattr_add_entry(header.get(), name.c_str(), value.data(), value.size());
    }
    if (S_ISREG(status.stx_mode)) return add_regular(header, held, status.stx_size);
    if (S_ISLNK(status.stx_mode)) GCR_TRY(set_target(header, held));
    ::archive_entry_set_rdevmajor(header.get(), status.stx_rdev_major);
    ::archive_entry_set_rdevminor(header.get(), status.stx_rdev_minor);
    return archive_.begin(header);
  }

  static Status set_target(const Header& header, const UniqueFd& held) {
    std::string target(PATH_MAX, '\0');
    const ssize_t length = ::readlinkat(held.get(), "", target.data(), target.size());
    if (length < 0) return Error::from_errno(errno, "cannot read the symbolic link");
    target.resize(static_cast<std::size_t>(length));
    ::archive_entry_copy_symlink(header.get(), target.c_str());
    return {};
  }

  Status add_regular(const Header& header, const UniqueFd& held, std::uint64_t size) {
    const UniqueFd file = procfs::open_regular(held);
    if (!file) return Error::from_errno(errno, "cannot open it");
    ::archive_entry_set_size(header.get(), static_cast<la_int64_t>(size));
    GCR_ASSIGN(const auto extents, data_of(file, size));
    const bool is_whole = size == 0 || (extents.size() == 1 && extents[0].bytes == size);
    if (!is_whole) {
      for (const Extent& extent : extents) {
        ::archive_entry_sparse_add_entry(header.get(), static_cast<la_int64_t>(extent.offset),
                                         static_cast<la_int64_t>(extent.bytes));
      }
      // libarchive's form of a file that is one hole.
      if (extents.empty()) ::archive_entry_sparse_add_entry(header.get(), 0, 0);
    }
    GCR_TRY(archive_.begin(header));
    std::uint64_t at = 0;
    for (const Extent& extent : extents) {
      GCR_TRY(add_hole(extent.offset - at));
      GCR_TRY(add_data(file, extent));
      at = extent.end();
    }
    return add_hole(size - at);
  }

  Status add_hole(std::uint64_t bytes) {
    while (bytes > 0) {
      const std::uint64_t part = std::min<std::uint64_t>(bytes, holes_.bytes().size());
      GCR_TRY(archive_.add(holes_.bytes().data(), part));
      bytes -= part;
    }
    return {};
  }

  /// Zeros in place of what the file has lost meanwhile.
  Status add_data(const UniqueFd& file, const Extent& extent) {
    packed_.bytes += extent.bytes;
    if (packed_.bytes > max_bytes_) {
      return Error(Code::kResourceExhausted,
                   fmt::format("there is more than {}, which is the limit for writable layers",
                               format_bytes(max_bytes_)));
    }
    for (std::uint64_t at = extent.offset; at < extent.end();) {
      const std::size_t wanted = std::min<std::uint64_t>(extent.end() - at, buffer_.size());
      const ssize_t got = ::pread(file.get(), buffer_.data(), wanted, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::from_errno(errno, "cannot read it");
      if (got == 0) return add_hole(extent.end() - at);
      GCR_TRY(archive_.add(buffer_.data(), static_cast<std::size_t>(got)));
      at += static_cast<std::uint64_t>(got);
    }
    return {};
  }

  const Tree& tree_;
  const std::uint64_t max_bytes_;
  Archive archive_;
  UniqueMapping holes_;
  RawBytes buffer_{kReadBytes};
  std::map<procfs::FileId, std::string> names_;  ///< the first name of files that have several
  Packed packed_;
};

}  // namespace

Result<Packed> write_pack(const Tree& tree, const Changes& changes, int fd,
                          std::uint64_t max_bytes) {
  auto packed = Writer(tree, fd, max_bytes).run(changes);
  if (packed) return packed;
  return packed.error().while_doing("cannot carry the container's own files in " +
                                    shown(tree.point));
}

}  // namespace gcr::layer
