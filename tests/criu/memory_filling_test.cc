// A stopped process gets the memory that was sent without CRIU, and nothing else changes in it.
#include "migrate-agent/criu/memory/memory_filling.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "tests/criu/program.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kMapped = 16 * kMiB;
constexpr std::uint64_t kNeverMapped = kPage;  ///< below vm.mmap_min_addr
constexpr char kOld = 'o';
/// PIDs in the namespace of the images; no other process has them.
constexpr pid_t kProcess = 77;
constexpr pid_t kThread = 78;
constexpr pid_t kZombie = 79;

/// A child that has stopped itself, with a copy of this process's memory.
class StoppedChild {
 public:
  StoppedChild() : pid_(::fork()) {
    if (pid_ == 0) {
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  StoppedChild(const StoppedChild&) = delete;
  StoppedChild& operator=(const StoppedChild&) = delete;
  ~StoppedChild() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }

  std::string read(std::uint64_t address, std::size_t bytes) const {
    std::string content(bytes, '\0');
    iovec here{content.data(), bytes};
    iovec there{reinterpret_cast<void*>(address), bytes};
    EXPECT_EQ(::process_vm_readv(pid_, &here, 1, &there, 1, 0), static_cast<ssize_t>(bytes));
    return content;
  }

 private:
  pid_t pid_;
};

struct Rseq {
  std::uint64_t pointer = 0;
  std::uint32_t size = 0;
};

/// A directory of images, and memory that a child inherits.
class Filling : public testing::Test {
 protected:
  void SetUp() override {
    void* at = ::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    mapping_ = UniqueMapping(at, kMapped);
    std::fill_n(static_cast<char*>(at), kMapped, kOld);
    write_tree();
    write_core(kProcess, Rseq{});
    write_core(kThread, std::nullopt);
    write_zombie();
    write_map({{0, std::uint64_t{1} << 48}});
  }

  std::uint64_t start() const { return reinterpret_cast<std::uint64_t>(mapping_.bytes().data()); }

  fs::path path(const std::string& name) const { return directory_.path() / name; }

  static std::string core_name(pid_t thread) { return "core-" + std::to_string(thread) + ".img"; }

  void write_tree() {
    wire::ProcessTreeEntry process;
    process.set_pid(kProcess);
    process.set_ppid(0);
    process.set_pgid(kProcess);
    process.set_sid(kProcess);
    process.add_threads(kProcess);
    process.add_threads(kThread);
    wire::ProcessTreeEntry zombie = process;
    zombie.set_pid(kZombie);
    zombie.set_ppid(kProcess);
    zombie.clear_threads();
    zombie.add_threads(kZombie);
    const std::vector records{process.SerializeAsString(), zombie.SerializeAsString()};
    ASSERT_TRUE(images::write_file(path("pstree.img"),
                                   images::image_of(images::kProcessTreeMagic, records)));
  }

  void write_core(pid_t thread, std::optional<Rseq> rseq) {
    wire::Core core;
    core.set_machine(1);
    core.mutable_thread_core()->set_seccomp_mode(0);
    if (rseq) {
      auto& entry = *core.mutable_thread_core()->mutable_rseq_entry();
      entry.set_rseq_abi_pointer(rseq->pointer);
      entry.set_rseq_abi_size(rseq->size);
    }
    write_core_image(thread, core.SerializeAsString());
  }

  void write_zombie() {
    wire::Core core;
    core.set_machine(1);
    write_core_image(kZombie, core.SerializeAsString());
  }

  void write_core_image(pid_t thread, const std::string& record) {
    ASSERT_TRUE(
        images::write_file(path(core_name(thread)), images::image_of(images::kCoreMagic, record)));
  }

  /// Adds data to a sparse file of memory.
  void write_memory(std::uint64_t address, const std::string& content, pid_t process = kProcess) {
    const fs::path file = path("private-memory-" + std::to_string(process) + "-0.img");
    const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::pwrite(fd.get(), content.data(), content.size(), static_cast<off_t>(address)),
              static_cast<ssize_t>(content.size()));
  }

  void write_map(const std::vector<AddressRange>& ranges) {
    ASSERT_TRUE(
        images::write_file(path(images::memory_map(kProcess)), images::image_of_ranges(ranges)));
  }

  Status fill(const StoppedChild& child) const {
    return fill_memory(directory_.path(), {{kProcess, child.pid()}});
  }

  Code code_of_failure(const StoppedChild& child) const {
    const Status filled = fill(child);
    if (filled) return Code::kInvalid;
    return filled.error().code();
  }

  void expect_nothing_filled(const StoppedChild& child) const {
    EXPECT_TRUE(child.read(start(), kMapped) == std::string(kMapped, kOld));
  }

  Directory directory_;
  UniqueMapping mapping_;
};

/// Bytes that differ from their neighbours, from those one page further, and from kOld.
std::string pattern(std::size_t bytes) {
  std::string content(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>('\x80' + i % 101);
  return content;
}

TEST_F(Filling, OnlyDataOutsideRseqAreasIsFilled) {
  const std::vector<Rseq> areas{{start() + 5 * kMiB + 100, 32},  // within a page
                                {start() + 6 * kMiB - 16, 32}};  // in two
  write_core(kProcess, areas[0]);
  write_core(kThread, areas[1]);
  std::string expected(kMapped, kOld);
  const auto add = [&](std::uint64_t offset, std::size_t bytes) {
    const std::string content = pattern(bytes);
    write_memory(start() + offset, content);
    expected.replace(offset, bytes, content);
  };
  add(3 * kPage, 9 * kMiB);
  add(12 * kMiB, kPage);
  add(12 * kMiB + 2 * kPage, kPage);
  add(kMapped - kPage, 1000);  // the last data of a file need not fill a page
  for (const Rseq& area : areas)
    expected.replace(area.pointer - start(), area.size, area.size, kOld);
  const StoppedChild child;
  const Status filled = fill(child);
  ASSERT_TRUE(filled) << filled.error().message();
  EXPECT_TRUE(child.read(start(), kMapped) == expected);
  EXPECT_EQ(mapping_.bytes()[3 * kPage], std::byte{kOld});  // this process is not the restored one
}

TEST_F(Filling, EdgeAndOverlappingRseqAreasAreSkipped) {
  write_memory(start() + kPage, pattern(2 * kPage));
  write_core(kProcess, Rseq{start() + kPage - 8, 64});
  write_core(kThread, Rseq{start() + kPage, 16});
  std::string expected(kMapped, kOld);
  expected.replace(kPage, 2 * kPage, pattern(2 * kPage));
  expected.replace(kPage, 56, 56, kOld);
  const StoppedChild child;
  const Status filled = fill(child);
  ASSERT_TRUE(filled) << filled.error().message();
  EXPECT_TRUE(child.read(start(), kMapped) == expected);
}

TEST_F(Filling, RseqAreaMayCoverAllData) {
  write_memory(start() + kPage, pattern(kPage));
  write_core(kThread, Rseq{start() + kPage, kPage});
  const StoppedChild child;
  const Status filled = fill(child);
  ASSERT_TRUE(filled) << filled.error().message();
  expect_nothing_filled(child);
}

TEST_F(Filling, UnmappedMemoryIsDataLoss) {
  write_memory(kNeverMapped, pattern(kPage));
  const StoppedChild child;
  EXPECT_EQ(code_of_failure(child), Code::kDataLoss);
}

TEST_F(Filling, ImpossibleAddressIsDataLoss) {
  write_memory((std::uint64_t{1} << 47) + kPage, pattern(kPage));
  const StoppedChild child;
  EXPECT_EQ(code_of_failure(child), Code::kDataLoss);
}

TEST_F(Filling, ReadOnlyMemoryIsDataLossAndNamed) {
  ASSERT_EQ(::mprotect(mapping_.bytes().data() + kMiB, kPage, PROT_READ), 0);
  write_memory(start(), pattern(2 * kMiB));
  const StoppedChild child;
  const Status filled = fill(child);
  ASSERT_FALSE(filled);
  EXPECT_EQ(filled.error().code(), Code::kDataLoss);
  EXPECT_THAT(filled.error().message(), testing::HasSubstr(fmt::format("{:#x}", start() + kMiB)));
  EXPECT_THAT(filled.error().message(), testing::HasSubstr(std::to_string(child.pid())));
  EXPECT_TRUE(child.read(start() + kMiB, kPage) == std::string(kPage, kOld));
}

TEST_F(Filling, UnexpectedFileNamesAreDataLoss) {
  const StoppedChild child;
  for (const std::string name :
       {"", "x-0", "0-0", "-77-0", "+77-0", "077-0", " 77-0", "77x-0", "77.1-0", "4294967373-0",
        "99999999999999999999-0", "77", "77-", "77-x", "77-00", "77-0x", "77--1", "77-0-0",
        "77-99999999999999999999"}) {
    const fs::path file = path("private-memory-" + name + ".img");
    ASSERT_TRUE(images::write_file(file, pattern(kPage)));
    EXPECT_EQ(code_of_failure(child), Code::kDataLoss) << file;
    fs::remove(file);
  }
  expect_nothing_filled(child);
}

TEST_F(Filling, ProcessMissingInTheImagesHasEnded) {
  write_memory(start(), pattern(kPage), kThread);
  const StoppedChild child;
  const Status filled = fill(child);
  EXPECT_TRUE(filled) << filled.error().message();
  expect_nothing_filled(child);
}

TEST_F(Filling, UnrestoredProcessIsDataLoss) {
  write_memory(start(), pattern(kPage));
  const Status filled = fill_memory(directory_.path(), {});
  ASSERT_FALSE(filled);
  EXPECT_EQ(filled.error().code(), Code::kDataLoss);
}

TEST_F(Filling, EndedProcessIsNotFound) {
  write_memory(start(), pattern(kPage));
  const StoppedChild child;
  ::kill(child.pid(), SIGKILL);
  siginfo_t ended;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child.pid()), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(code_of_failure(child), Code::kNotFound);
}

TEST_F(Filling, DamagedImagesAreDataLoss) {
  write_memory(start(), pattern(kPage));
  const StoppedChild child;
  for (const Rseq rseq : {Rseq{start(), 4097}, Rseq{0, 4097}, Rseq{~std::uint64_t{0} - 30, 32}}) {
    write_core(kThread, rseq);
    EXPECT_EQ(code_of_failure(child), Code::kDataLoss) << rseq.pointer << " " << rseq.size;
  }
  write_core_image(kThread, "\xff");
  EXPECT_EQ(code_of_failure(child), Code::kDataLoss);
  ASSERT_TRUE(images::write_file(path(core_name(kThread)), "CRIU"));
  EXPECT_EQ(code_of_failure(child), Code::kDataLoss);
  ASSERT_TRUE(images::write_file(path(core_name(kThread)),
                                 images::image_of(images::kCoreMagic, std::vector<std::string>{})));
  EXPECT_EQ(code_of_failure(child), Code::kDataLoss);
  expect_nothing_filled(child);
}

TEST_F(Filling, MissingImagesAreNotFound) {
  write_memory(start(), pattern(kPage));
  const StoppedChild child;
  fs::remove(path(core_name(kThread)));
  EXPECT_EQ(code_of_failure(child), Code::kNotFound);
  fs::remove(path("pstree.img"));
  EXPECT_EQ(code_of_failure(child), Code::kNotFound);
  expect_nothing_filled(child);
}

TEST_F(Filling, WithoutMemoryFilesNothingElseIsRead) {
  const StoppedChild child;
  EXPECT_TRUE(fill(child));
  fs::remove(path("pstree.img"));
  EXPECT_TRUE(fill(child));
}

TEST_F(Filling, FileOfHolesFillsNothing) {
  write_memory(start(), "");
  fs::resize_file(path("private-memory-77-0.img"), start() + kMapped);
  const StoppedChild child;
  const Status filled = fill(child);
  ASSERT_TRUE(filled) << filled.error().message();
  expect_nothing_filled(child);
}

TEST_F(Filling, MemoryUnmappedBeforeTheDumpIsNotFilled) {
  const std::string content = pattern(5 * kPage);
  write_memory(start(), content);
  write_memory(kNeverMapped, pattern(kPage));
  write_map({{start() + kPage, start() + 2 * kPage}, {start() + 4 * kPage, start() + kMapped}});
  const StoppedChild child;
  const Status filled = fill(child);
  ASSERT_TRUE(filled) << filled.error().message();
  std::string expected(5 * kPage, kOld);
  expected.replace(kPage, kPage, content, kPage, kPage);
  expected.replace(4 * kPage, kPage, content, 4 * kPage, kPage);
  EXPECT_EQ(child.read(start(), 5 * kPage), expected);
}

TEST_F(Filling, MissingDamagedOrUnorderedMapIsRefused) {
  write_memory(start(), pattern(kPage));
  const StoppedChild child;
  const auto code = [&] {
    const Status filled = fill(child);
    return filled ? std::nullopt : std::optional(filled.error().code());
  };
  write_map({{2 * kPage, 3 * kPage}, {kPage, 2 * kPage}});
  EXPECT_EQ(code(), Code::kDataLoss);
  write_map({{~std::uint64_t{0} - kPage + 1, 0}});
  EXPECT_EQ(code(), Code::kDataLoss);
  ASSERT_TRUE(images::write_file(path(images::memory_map(kProcess)), "no image"));
  EXPECT_EQ(code(), Code::kDataLoss);
  fs::remove(path(images::memory_map(kProcess)));
  EXPECT_EQ(code(), Code::kNotFound);
  EXPECT_EQ(child.read(start(), kPage), std::string(kPage, kOld));
}

TEST_F(Filling, RseqAreasAreListedPerProcess) {
  write_core(kThread, Rseq{0x1000, 32});
  write_core(kProcess, Rseq{0x2000, 64});
  const auto areas = images::rseq_areas(directory_.path());
  ASSERT_TRUE(areas) << areas.error().message();
  EXPECT_EQ(areas->size(), 2u);
  EXPECT_EQ(areas->at(kProcess), (std::vector<AddressRange>{{0x1000, 0x1020}, {0x2000, 0x2040}}));
  EXPECT_TRUE(areas->at(kZombie).empty());
}

}  // namespace
}  // namespace gcr::criu::test
