// Packs of container files, as a peer sends them: what is read from one leads nowhere else, and is
// within the limits.
#include <archive.h>
#include <archive_entry.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "migrate-agent/process/layer/pack_reader.h"
#include "src/base/unique_fd.h"
#include "tests/fuzz/input.h"

namespace gcr::fuzz {
namespace {

constexpr layer::Limits kLimits{64 * kKiB, 100};

void add(archive* pack, const char* path, mode_t mode, const std::string& content) {
  archive_entry* const entry = ::archive_entry_new();
  ::archive_entry_copy_pathname(entry, path);
  ::archive_entry_set_mode(entry, mode);
  ::archive_entry_set_mtime(entry, 1, 500);
  ::archive_entry_set_size(entry, static_cast<la_int64_t>(content.size()));
  if (S_ISCHR(mode)) ::archive_entry_set_rdev(entry, makedev(1, 3));
  if (S_ISLNK(mode)) ::archive_entry_copy_symlink(entry, "/target");
  if (content.size() > 4096) ::archive_entry_sparse_add_entry(entry, 0, 1024);
  if (S_ISREG(mode)) ::archive_entry_xattr_add_entry(entry, "user.x", "y", 1);
  require(::archive_write_header(pack, entry) == ARCHIVE_OK, "an entry can be written");
  ::archive_write_data(pack, content.data(), content.size());
  ::archive_entry_free(entry);
}

std::string pack_with(const char* charset) {
  std::string bytes(64 * kKiB, '\0');
  std::size_t used = 0;
  archive* const pack = ::archive_write_new();
  ::archive_write_set_format_pax(pack);
  ::archive_write_set_format_option(pack, "pax", "hdrcharset", charset);
  ::archive_write_set_format_option(pack, "pax", "xattrheader", "SCHILY");
  ::archive_write_set_bytes_in_last_block(pack, 1);
  ::archive_write_open_memory(pack, bytes.data(), bytes.size(), &used);
  add(pack, ".", S_IFDIR | 0755, "");
  add(pack, "etc", S_IFDIR | 0755, "");
  add(pack, "etc/.wh..wh..opq", S_IFREG | 0600, "");
  add(pack, "etc/.wh.passwd", S_IFREG | 0600, "");
  add(pack, "etc/file", S_IFREG | 04755, "content");
  add(pack, "etc/sparse", S_IFREG | 0644, std::string(8192, 'x'));
  add(pack, "link", S_IFLNK | 0777, "");
  add(pack, "null", S_IFCHR | 0666, "");
  add(pack, "fifo", S_IFIFO | 0600, "");
  ::archive_write_close(pack);
  ::archive_write_free(pack);
  bytes.resize(used);
  return bytes;
}

bool is_plain(const std::string& path) {
  return path.empty() ||
         (path.size() <= layer::kMaxPathBytes && ("/" + path + "/").find("/../") == path.npos &&
          ("/" + path + "/").find("/./") == path.npos &&
          ("/" + path + "/").find("//") == path.npos);
}

void take(const UniqueFd& file) {
  auto reader = layer::PackReader::open(file.get(), kLimits);
  if (!reader) return;
  std::uint64_t bytes = 0;
  for (std::size_t entries = 0;; ++entries) {
    const auto entry = reader->next();
    if (!entry || !*entry) return;
    const layer::PackEntry& one = **entry;
    require(entries < kLimits.max_entries, "entries are limited");
    require(is_plain(one.path), "a path is below the tree");
    require(one.kind != layer::PackEntry::Kind::kLink || is_plain(one.target), "a link too");
    require(one.size <= layer::kMaxFileBytes, "sizes are limited");
    const Status read = reader->read_content([&](std::uint64_t offset, auto content) {
      bytes += content.size();
      require(offset + content.size() <= one.size, "content is in the file");
      require(bytes <= kLimits.max_bytes, "content is limited");
      return Status();
    });
    if (!read) return;
  }
}

}  // namespace

std::vector<std::string> seeds() { return {pack_with("BINARY"), pack_with("UTF-8")}; }

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const gcr::UniqueFd file(::memfd_create("pack", MFD_CLOEXEC));
  gcr::fuzz::require(::ftruncate(file.get(), 0) == 0, "an empty file");
  gcr::fuzz::require(::pwrite(file.get(), data, size, 0) == static_cast<ssize_t>(size), "a file");
  ::lseek(file.get(), 0, SEEK_SET);
  gcr::fuzz::take(file);
  return 0;
}
