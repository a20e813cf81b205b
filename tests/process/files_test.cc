// Build-ids of good and bad files, and what the destination says of files that it lacks.
#include "migrate-agent/process/files.h"

#include <elf.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "migrate-agent/process/elf.h"
#include "migrate-agent/process/inspect.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

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

  proto::ProcessFacts facts_of(const fs::path& path) {
    proto::ProcessFacts facts;
    EXPECT_TRUE(describe_mapped_file(path, path, *facts.add_mapped_files()));
    return facts;
  }

  fs::path directory_;
};

TEST_F(Files, BuildIdIsRead) {
  EXPECT_EQ(build_id(write("elf", elf_with_note(note(4, 4), 20))), "1234abcd");
  EXPECT_EQ(build_id("/proc/self/exe").empty(),
            facts_of("/proc/self/exe").mapped_files(0).build_id().empty());
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

TEST_F(Files, MissingFileIsMissing) {
  const fs::path path = write("file", "content");
  proto::ProcessFacts facts = facts_of(path);
  EXPECT_THAT(compare_files(facts), IsEmpty());
  fs::remove(path);
  const auto findings = compare_files(facts);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].id(), "file-missing");
  EXPECT_THAT(findings[0].found(), HasSubstr(path.string()));
}

TEST_F(Files, OtherContentOfTheSameSizeDiffers) {
  const fs::path path = write("file", "content");
  const proto::ProcessFacts facts = facts_of(path);
  EXPECT_EQ(facts.mapped_files(0).sha256().size(), 32u);
  write("other", "CONTENT");
  fs::rename(directory_ / "other", path);
  const auto findings = compare_files(facts);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].id(), "file-differs");
}

TEST_F(Files, OtherBuildIdDiffers) {
  const fs::path path = write("elf", elf_with_note(note(4, 4), 20));
  proto::ProcessFacts facts = facts_of(path);
  EXPECT_THAT(compare_files(facts), IsEmpty());
  facts.mutable_mapped_files(0)->set_build_id("1234abce");
  const auto findings = compare_files(facts);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].id(), "file-differs");
  EXPECT_THAT(findings[0].found(), HasSubstr("1234abce"));
}

TEST_F(Files, OpenFileIsComparedBySizeUnlessItIsWritten) {
  const fs::path path = write("file", "content");
  proto::ProcessFacts facts;
  facts.add_open_files()->set_path(path);
  EXPECT_THAT(compare_files(facts), IsEmpty());
  facts.mutable_open_files(0)->set_size_bytes(3);
  ASSERT_EQ(compare_files(facts).size(), 1u);
  EXPECT_EQ(compare_files(facts)[0].id(), "file-differs");
  facts.mutable_open_files(0)->set_path(path.string() + "-not");
  ASSERT_EQ(compare_files(facts).size(), 1u);
  EXPECT_EQ(compare_files(facts)[0].id(), "file-missing");
}

/// What a peer or a process may put under a name that is examined.
using HostileFiles = Files;

TEST_F(HostileFiles, WhatIsNoRegularFileIsNotOpened) {
  const fs::path path = write("file", "content");
  const proto::ProcessFacts facts = facts_of(path);
  for (const mode_t type : {S_IFIFO, S_IFCHR}) {
    fs::remove(path);
    ASSERT_EQ(::mknod(path.c_str(), type | 0600, type == S_IFCHR ? makedev(1, 3) : 0), 0);
    const UniqueFd opened(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    ASSERT_GE(::inotify_add_watch(opened.get(), path.c_str(), IN_OPEN), 0);
    ASSERT_EQ(compare_files(facts).size(), 1u);
    EXPECT_EQ(compare_files(facts)[0].id(), "file-missing");
    char event[4096];
    EXPECT_LT(::read(opened.get(), event, sizeof(event)), 0) << "it was opened";
  }
}

TEST_F(Files, FifoUnderAMappedNameIsNotWaitedFor) {
  const fs::path path = write("file", "content");
  const proto::ProcessFacts facts = facts_of(path);
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ASSERT_EQ(compare_files(facts).size(), 1u);
  EXPECT_EQ(compare_files(facts)[0].id(), "file-missing");
}

}  // namespace
}  // namespace gcr::process
