#include "migrate-agent/process/layer/pack_reader.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "src/base/raw_bytes.h"

namespace gcr::layer {
namespace {

constexpr std::size_t kStreamBytes = 64 * kKiB;

/// How much of a pack one entry may take in addition to its content: headers and the list of
/// extents. What libarchive keeps in memory for them is bounded by this.
constexpr std::int64_t kMaxHeaderBytes = 4 * kMiB;

/// Two blocks of zeros.
constexpr std::int64_t kEndBytes = 1024;

struct FreeReading {
  void operator()(archive* one) const { ::archive_read_free(one); }
};

Error invalid(std::string what) {
  return Error(Code::kProtocol, "the pack of container files is invalid: " + std::move(what));
}

bool is_plain_component(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= kMaxNameBytes;
}

/// A path of a pack as a tree has it, relative and without "."; none if it could lead elsewhere.
std::optional<std::string> plain(const char* text) {
  if (text == nullptr) return std::nullopt;
  std::string_view path = text;
  if (path.ends_with('/') && path.size() > 1) path.remove_suffix(1);
  if (path == ".") return "";
  if (path.size() > kMaxPathBytes) return std::nullopt;
  for (std::string_view rest = path;;) {
    const std::size_t slash = rest.find('/');
    if (!is_plain_component(rest.substr(0, slash))) return std::nullopt;
    if (slash == std::string_view::npos) return std::string(path);
    rest.remove_prefix(slash + 1);
  }
}

/// The same for a marker, whose last component may be longer, and which stands for another path.
std::optional<std::string> plain_marked(const std::string& path) {
  const std::string name = name_of(path).substr(kWhiteoutPrefix.size());
  if (!is_plain_component(name) || name.starts_with(kWhiteoutPrefix)) return std::nullopt;
  return plain(join(parent_of(path), name).c_str());
}

bool is_id(la_int64_t id) { return id >= 0 && id < std::numeric_limits<uid_t>::max(); }

Status read_attributes_of(archive_entry* from, PackEntry& entry) {
  std::size_t bytes = 0;
  for (int left = ::archive_entry_xattr_reset(from); left > 0; --left) {
    const char* name = nullptr;
    const void* value = nullptr;
    std::size_t size = 0;
    if (::archive_entry_xattr_next(from, &name, &value, &size) != ARCHIVE_OK || name == nullptr) {
      return invalid("attributes without names");
    }
    if (!is_carried_attribute(name) || std::string_view(name).size() > kMaxNameBytes) {
      return invalid(fmt::format("{} has the attribute {}", shown_path(entry.path), shown(name)));
    }
    bytes += std::string_view(name).size() + size;
    if (bytes > kMaxAttributeBytes) {
      return invalid(shown_path(entry.path) + " has too many attributes");
    }
    entry.attributes[name] = std::string(static_cast<const char*>(value), size);
  }
  return {};
}

Status read_file(archive_entry* from, PackEntry& entry) {
  const std::string who = shown_path(entry.path);
  const la_int64_t size = ::archive_entry_size(from);
  if (!is_id(::archive_entry_uid(from)) || !is_id(::archive_entry_gid(from))) {
    return invalid(who + " has no valid owner");
  }
  if (size < 0 || static_cast<std::uint64_t>(size) > kMaxFileBytes) {
    return invalid(fmt::format("{} has a size of {}", who, size));
  }
  entry.mode = ::archive_entry_mode(from) & (S_IFMT | 07777);
  entry.uid = static_cast<uid_t>(::archive_entry_uid(from));
  entry.gid = static_cast<gid_t>(::archive_entry_gid(from));
  entry.modified = {::archive_entry_mtime(from), ::archive_entry_mtime_nsec(from)};
  entry.size = static_cast<std::uint64_t>(size);
  entry.device = makedev(static_cast<unsigned>(::archive_entry_rdevmajor(from)),
                         static_cast<unsigned>(::archive_entry_rdevminor(from)));
  if (S_ISLNK(entry.mode)) {
    const char* const target = ::archive_entry_symlink(from);
    if (target == nullptr || *target == '\0') return invalid(who + " is a link without a target");
    entry.target = target;
  }
  const bool is_known = S_ISREG(entry.mode) || S_ISDIR(entry.mode) || S_ISLNK(entry.mode) ||
                        S_ISFIFO(entry.mode) || S_ISCHR(entry.mode) || S_ISBLK(entry.mode);
  if (!is_known) return invalid(who + " is of an unknown type");
  if (S_ISCHR(entry.mode) || S_ISBLK(entry.mode)) {
    GCR_TRY(check_device(entry.path, entry.mode, entry.device));
  }
  return read_attributes_of(from, entry);
}

PackEntry make_entry(PackEntry::Kind kind, const std::string& path) {
  PackEntry entry;
  entry.kind = kind;
  entry.path = path;
  return entry;
}

Result<PackEntry> read_marker(const std::string& path) {
  if (name_of(path) == kOpaqueName) {
    const auto directory = plain(path == kOpaqueName ? "." : parent_of(path).c_str());
    if (directory) return make_entry(PackEntry::Kind::kEmptied, *directory);
  } else if (const auto removed = plain_marked(path)) {
    return make_entry(PackEntry::Kind::kRemoved, *removed);
  }
  return invalid("it has the name " + shown(path));
}

Result<PackEntry> read_entry(archive_entry* from) {
  const char* const name = ::archive_entry_pathname(from);
  if (name == nullptr) return invalid("an entry has no name");
  if (name_of(name).starts_with(kWhiteoutPrefix)) return read_marker(name);
  const auto path = plain(name);
  if (!path || name_of(*path).starts_with(kWhiteoutPrefix)) {
    return invalid("it has the name " + shown(name));
  }
  PackEntry entry = make_entry(PackEntry::Kind::kFile, *path);
  if (const char* const first = ::archive_entry_hardlink(from)) {
    const auto target = plain(first);
    if (!target) return invalid(fmt::format("{} is {}", shown_path(*path), shown(first)));
    entry.kind = PackEntry::Kind::kLink;
    entry.target = *target;
  } else {
    GCR_TRY(read_file(from, entry));
  }
  return entry;
}

}  // namespace

/// The archive, and the descriptor that libarchive reads through it.
class PackReader::Stream {
 public:
  Stream(int fd, const Limits& limits) : limits_(limits), fd_(fd) {}

  Status open() {
    archive* const one = archive_.get();
    if (one == nullptr || ::archive_read_support_format_tar(one) != ARCHIVE_OK ||
        ::archive_read_set_read_callback(one, &Stream::read) != ARCHIVE_OK ||
        ::archive_read_set_callback_data(one, this) != ARCHIVE_OK ||
        ::archive_read_open1(one) != ARCHIVE_OK) {
      return failed();
    }
    return {};
  }

  Result<std::optional<PackEntry>> next() {
    header_bytes_ = 0;
    archive_entry* entry = nullptr;
    const int result = ::archive_read_next_header(archive_.get(), &entry);
    if (result == ARCHIVE_EOF) {
      GCR_TRY(check_end());
      return std::optional<PackEntry>();
    }
    if (result != ARCHIVE_OK) return failed();
    if (++entries_ > limits_.max_entries) {
      return Error(
          Code::kResourceExhausted,
          fmt::format("the pack of container files has more than {} entries", limits_.max_entries));
    }
    GCR_ASSIGN(PackEntry read, read_entry(entry));
    size_ = read.size;
    return std::optional<PackEntry>(std::move(read));
  }

  Status read_content(const Sink& sink) {
    const void* block = nullptr;
    std::size_t count = 0;
    la_int64_t offset = 0;
    int result = ARCHIVE_OK;
    while ((result = ::archive_read_data_block(archive_.get(), &block, &count, &offset)) ==
           ARCHIVE_OK) {
      header_bytes_ -= static_cast<std::int64_t>(count);
      bytes_ += count;
      if (count == 0) continue;
      if (offset < 0 || static_cast<std::uint64_t>(offset) > size_ ||
          count > size_ - static_cast<std::uint64_t>(offset)) {
        return invalid("content beyond the end of a file");
      }
      if (bytes_ > limits_.max_bytes) {
        return Error(Code::kResourceExhausted, fmt::format("container files have more than {}",
                                                           format_bytes(limits_.max_bytes)));
      }
      const auto* const bytes = static_cast<const std::byte*>(block);
      GCR_TRY(sink(static_cast<std::uint64_t>(offset), std::span(bytes, count)));
    }
    return result == ARCHIVE_EOF ? Status() : failed();
  }

 private:
  static la_ssize_t read(archive* one, void* self, const void** block) {
    Stream& stream = *static_cast<Stream*>(self);
    *block = stream.buffer_.data();
    const ssize_t count = stream.read_some();
    if (count < 0) ::archive_set_error(one, EIO, "an entry is too long, or cannot be read");
    return count;
  }

  ssize_t read_some() {
    if (header_bytes_ > kMaxHeaderBytes) return -1;
    ssize_t count = 0;
    do {
      count = ::read(fd_, buffer_.data(), buffer_.size());
    } while (count < 0 && errno == EINTR);
    if (count < 0) {
      error_ = errno;
    } else {
      header_bytes_ += count;
      total_bytes_ += count;
    }
    return count;
  }

  /// libarchive takes the end of the stream for the end of the archive.
  Status check_end() {
    const la_int64_t end = ::archive_read_header_position(archive_.get());
    ssize_t count = 0;
    while ((count = read_some()) > 0) {
    }
    if (count < 0) return failed();
    if (total_bytes_ - end >= kEndBytes) return {};
    return invalid("its end is missing");
  }

  Error failed() const {
    if (error_ != 0) return Error::from_errno(error_, "cannot read the pack of container files");
    const char* const why = archive_ ? ::archive_error_string(archive_.get()) : nullptr;
    return invalid(shown(why != nullptr ? why : "no memory"));
  }

  const Limits limits_;
  const int fd_;
  RawBytes buffer_{kStreamBytes};
  int error_ = 0;  ///< errno of a read
  std::int64_t total_bytes_ = 0;
  std::int64_t header_bytes_ = 0;  ///< read for the current entry, without its content
  std::uint64_t bytes_ = 0;        ///< of contents
  std::uint64_t size_ = 0;         ///< of the current entry
  std::size_t entries_ = 0;
  const std::unique_ptr<archive, FreeReading> archive_{::archive_read_new()};
};

PackReader::PackReader(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
PackReader::PackReader(PackReader&&) noexcept = default;
PackReader::~PackReader() = default;

Result<PackReader> PackReader::open(int fd, const Limits& limits) {
  auto stream = std::make_unique<Stream>(fd, limits);
  GCR_TRY(stream->open());
  return PackReader(std::move(stream));
}

Result<std::optional<PackEntry>> PackReader::next() { return stream_->next(); }

Status PackReader::read_content(const Sink& sink) { return stream_->read_content(sink); }

}  // namespace gcr::layer
