// Build-ids of valid and invalid files.
#include <elf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "migrate-agent/process/inspect/elf.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  Files() {
    std::string path = "/dev/shm/gcr-files-test-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) directory_ = path;
  }
  ~Files() override { fs::remove_all(directory_); }

  fs::path write(const std::string& name, const std::string& content) {
    std::ofstream(directory_ / name, std::ios::binary) << content;
    return directory_ / name;
  }

  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static std::string build_id(const fs::path& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return elf_build_id(fd.get());
  }

  /// An ELF file with one PT_NOTE segment of these bytes.
  static std::string elf_with_note(const std::string& note, std::uint64_t claimed_bytes) {
    Elf64_Ehdr file{};
    std::copy_n(ELFMAG, SELFMAG, file.e_ident);
    file.e_ident[EI_CLASS] = ELFCLASS64;
    file.e_ident[EI_DATA] = ELFDATA2LSB;
    file.e_phoff = sizeof(file);
    file.e_phentsize = sizeof(Elf64_Phdr);
    file.e_phnum = 1;
    Elf64_Phdr segment{};
    segment.p_type = PT_NOTE;
    segment.p_offset = sizeof(file) + sizeof(segment);
    segment.p_filesz = claimed_bytes;
    return std::string(reinterpret_cast<const char*>(&file), sizeof(file)) +
           std::string(reinterpret_cast<const char*>(&segment), sizeof(segment)) + note;
  }

  static std::string note(std::uint32_t name_bytes, std::uint32_t content_bytes) {
    const Elf64_Nhdr header{name_bytes, content_bytes, NT_GNU_BUILD_ID};
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
           std::string("GNU\0\x12\x34\xab\xcd", 8);
  }

  fs::path directory_;
};

TEST_F(Files, BuildIdIsRead) {
  EXPECT_EQ(build_id(write("elf", elf_with_note(note(4, 4), 20))), "1234abcd");
}

TEST_F(Files, DamagedElfHasNoBuildId) {
  const std::string good = elf_with_note(note(4, 4), 20);
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(build_id(write("cut", good.substr(0, length))), "") << length;
  }
  EXPECT_EQ(build_id(write("long", elf_with_note(note(4, 4), ~0ull))), "");
  EXPECT_EQ(build_id(write("name", elf_with_note(note(~0u, 4), 20))), "");
  EXPECT_EQ(build_id(write("content", elf_with_note(note(4, ~0u), 20))), "");
  EXPECT_EQ(build_id(write("text", "just a text")), "");
}

}  // namespace
}  // namespace gcr::process
