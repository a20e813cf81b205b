// Packs that no agent would send: entries of any kind by libarchive, and headers by hand.
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/unique_fd.h"
#include "tests/process/layer/fixture.h"

namespace gcr::layer::test {

/// A pack with any entries, by libarchive.
class PackBuilder {
 public:
  PackBuilder() {
    ::archive_write_set_format_pax(archive_);
    ::archive_write_set_format_option(archive_, "pax", "hdrcharset", "BINARY");
    ::archive_write_set_format_option(archive_, "pax", "xattrheader", "SCHILY");
    ::archive_write_set_bytes_in_last_block(archive_, 1);
    ::archive_write_open_fd(archive_, file_.get());
  }

  /// An entry of another type or with more, as `change` makes it.
  PackBuilder& add(const std::string& path, mode_t mode, const std::string& content = "",
                   const std::function<void(archive_entry*)>& change = {}) {
    archive_entry* const entry = ::archive_entry_new();
    ::archive_entry_copy_pathname(entry, path.c_str());
    ::archive_entry_set_mode(entry, mode);
    ::archive_entry_set_size(entry, static_cast<la_int64_t>(content.size()));
    ::archive_entry_set_mtime(entry, 0, 0);
    if (change) change(entry);
    EXPECT_EQ(::archive_write_header(archive_, entry), ARCHIVE_OK);
    ::archive_write_data(archive_, content.data(), content.size());
    ::archive_entry_free(entry);
    return *this;
  }
  PackBuilder& file(const std::string& path) { return add(path, S_IFREG | 0644, "hostile"); }
  PackBuilder& marker(const std::string& path) { return add(path, S_IFREG | 0600); }
  PackBuilder& directory(const std::string& path) { return add(path, S_IFDIR | 0755); }
  PackBuilder& symlink(const std::string& path, const std::string& target) {
    return add(path, S_IFLNK | 0777, "",
               [&](archive_entry* entry) { ::archive_entry_copy_symlink(entry, target.c_str()); });
  }
  PackBuilder& link(const std::string& path, const std::string& target) {
    return add(path, S_IFREG | 0644, "",
               [&](archive_entry* entry) { ::archive_entry_copy_hardlink(entry, target.c_str()); });
  }

  UniqueFd take() {
    ::archive_write_close(archive_);
    ::archive_write_free(archive_);
    ::lseek(file_.get(), 0, SEEK_SET);
    return std::move(file_);
  }

 private:
  UniqueFd file_ = memory_file();
  archive* const archive_ = ::archive_write_new();
};

/// A header of a tar archive, with any size.
inline std::string header(const std::string& name, char type, std::uint64_t size) {
  std::string block(512, '\0');
  name.copy(block.data(), 100);
  std::memcpy(&block[100], "0000644\0", 8);
  std::memcpy(&block[108], "0000000\0", 8);
  std::memcpy(&block[116], "0000000\0", 8);
  block[124] = '\x80';  // the size is binary
  for (int i = 0; i < 8; ++i) block[135 - i] = static_cast<char>(size >> (8 * i));
  std::memcpy(&block[136], "00000000000\0", 12);
  block[156] = type;
  std::memcpy(&block[257], "ustar\00000", 8);
  std::memset(&block[148], ' ', 8);
  unsigned sum = 0;
  for (const char byte : block) sum += static_cast<unsigned char>(byte);
  std::memcpy(&block[148], fmt::format("{:06o}", sum).c_str(), 7);
  return block;
}

/// A pax header of "KEY=VALUE" records.
inline std::string pax(const std::vector<std::string>& records) {
  std::string content;
  for (const std::string& record : records) {
    std::size_t length = record.size() + 2;  // with a blank and the end of the line
    while (std::to_string(length).size() + record.size() + 2 != length) ++length;
    content += fmt::format("{} {}\n", length, record);
  }
  const std::string begin = header("pax", 'x', content.size());
  content.resize((content.size() + 511) / 512 * 512);
  return begin + content;
}

inline UniqueFd file_with(const std::string& bytes) {
  UniqueFd file = memory_file();
  EXPECT_EQ(::write(file.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

}  // namespace gcr::layer::test
