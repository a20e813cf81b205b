#include "migrate-agent/process/inspect/elf.h"

#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gcr::process {
namespace {

constexpr std::size_t kMaxSegments = 1024;
constexpr std::size_t kMaxNoteBytes = 64 * 1024;
constexpr std::size_t kMaxBuildIdBytes = 64;

bool read_exactly(int fd, void* into, std::size_t bytes, std::uint64_t offset) {
  if (offset > INT64_MAX) return false;
  return ::pread(fd, into, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

/// Looks through one PT_NOTE segment. Notes are padded to four bytes (the build-id's always are).
std::string find_build_id(const std::vector<char>& notes) {
  const auto padded = [](std::uint64_t size) { return (size + 3) & ~std::uint64_t{3}; };
  std::uint64_t at = 0;
  while (at + sizeof(Elf64_Nhdr) <= notes.size()) {
    Elf64_Nhdr header;
    std::memcpy(&header, notes.data() + at, sizeof(header));
    const std::uint64_t name = at + sizeof(header);
    const std::uint64_t content = name + padded(header.n_namesz);
    if (content + header.n_descsz > notes.size()) return "";
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == sizeof(ELF_NOTE_GNU) &&
        std::memcmp(notes.data() + name, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0 &&
        header.n_descsz <= kMaxBuildIdBytes) {
      const auto* id = reinterpret_cast<const unsigned char*>(notes.data() + content);
      return fmt::format("{:02x}", fmt::join(id, id + header.n_descsz, ""));
    }
    at = content + padded(header.n_descsz);
  }
  return "";
}

template <class FileHeader, class ProgramHeader>
std::string build_id_of(int fd) {
  FileHeader file;
  if (!read_exactly(fd, &file, sizeof(file), 0) || file.e_phentsize != sizeof(ProgramHeader)) {
    return "";
  }
  const std::size_t count = std::min<std::size_t>(file.e_phnum, kMaxSegments);
  for (std::size_t index = 0; index < count; ++index) {
    ProgramHeader segment;
    const std::uint64_t offset = file.e_phoff + index * sizeof(segment);
    if (!read_exactly(fd, &segment, sizeof(segment), offset)) return "";
    if (segment.p_type != PT_NOTE || segment.p_filesz > kMaxNoteBytes) continue;
    std::vector<char> notes(segment.p_filesz);
    if (!read_exactly(fd, notes.data(), notes.size(), segment.p_offset)) continue;
    std::string found = find_build_id(notes);
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace

std::string elf_build_id(int fd) {
  unsigned char ident[EI_NIDENT];
  if (!read_exactly(fd, ident, sizeof(ident), 0) || std::memcmp(ident, ELFMAG, SELFMAG) != 0 ||
      ident[EI_DATA] != ELFDATA2LSB) {
    return "";
  }
  if (ident[EI_CLASS] == ELFCLASS64) return build_id_of<Elf64_Ehdr, Elf64_Phdr>(fd);
  if (ident[EI_CLASS] == ELFCLASS32) return build_id_of<Elf32_Ehdr, Elf32_Phdr>(fd);
  return "";
}

}  // namespace gcr::process
