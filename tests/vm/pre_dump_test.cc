// Images in rounds with a real CRIU, on a kernel that tracks written pages.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "migrate-agent/criu/runs/criu.h"
#include "tests/criu/program.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kPages = 8192;  ///< of the program's memory
constexpr std::uint64_t kWritten = 64;  ///< of them that it writes to
constexpr std::uint64_t kMemoryBytes = kPages * kPageBytes;
/// Steps after which the program has checked every page.
constexpr int kStepsToCheckAll = kPages / 64;

std::uint64_t page_bytes(const fs::path& images) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(images)) {
    if (entry.path().filename().string().starts_with("pages-")) bytes += entry.file_size();
  }
  return bytes;
}

class PreDump : public testing::Test {
 protected:
  fs::path file() const { return directory_.path() / "output"; }

  void start() {
    program_ = std::make_unique<Program>(std::vector<std::string>{
        GCR_WRITING_PROGRAM, file().string(), std::to_string(kPages), std::to_string(kWritten)});
    wait_for_progress(file(), {}, 5);
  }

  /// Waits until all pages that the program writes to have been written again.
  void wait_for_writes() { wait_for_progress(file(), read_output(file()), 2 * kWritten); }

  /// Two rounds and the final dump of `pid` in images/`name`; the process is stopped afterwards.
  void dump_in_rounds(pid_t pid, const std::string& name) {
    final_ = directory_.make(name);
    const fs::path first = directory_.make(name + "/pre-1");
    const fs::path second = directory_.make(name + "/pre-2");
    const auto everything = pre_dump(criu_command(), pid, first);
    ASSERT_TRUE(everything) << everything.error().message();
    wait_for_writes();
    const auto changes = pre_dump(criu_command(), pid, second, first);
    ASSERT_TRUE(changes) << changes.error().message();
    wait_for_writes();
    auto last = PreparedDump::to_directory(criu_command(), pid, final_, second);
    ASSERT_TRUE(last) << last.error().message();
    const auto report = last->run();
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_GE(page_bytes(first), kMemoryBytes);
    for (const fs::path& small : {second, final_}) {
      EXPECT_GE(page_bytes(small), kWritten * kPageBytes) << small;
      EXPECT_LT(page_bytes(small), kMemoryBytes / 8) << small;
    }
  }

  /// The process of the images, restored and running.
  RestoredTree restore_and_resume() {
    auto tree = restore(criu_command(), final_);
    if (!tree) throw std::runtime_error(tree.error().message());
    EXPECT_TRUE(resume_stopped(tree->root()));
    return std::move(*tree);
  }

  /// The program continues and finds all of its memory unchanged.
  void expect_progress(const Output& dumped) {
    expect_gapless(wait_for_progress(file(), dumped, 2 * kStepsToCheckAll));
  }

  Directory directory_;
  std::unique_ptr<Program> program_;
  fs::path final_;
};

TEST_F(PreDump, KernelTracksWrittenPages) {
  const Status tracked = check_memory_tracking(criu_command());
  EXPECT_TRUE(tracked) << tracked.error().message();
}

TEST_F(PreDump, FinalDumpIsSmallAndRestores) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_in_rounds(program_->pid(), "images"));
  const Output dumped = read_output(file());
  program_.reset();
  const RestoredTree tree = restore_and_resume();
  expect_progress(dumped);
}

TEST_F(PreDump, RestoredProgramCanBePreDumpedAgain) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_in_rounds(program_->pid(), "images"));
  program_.reset();
  RestoredTree first = restore_and_resume();
  wait_for_writes();
  ASSERT_NO_FATAL_FAILURE(dump_in_rounds(first.pid(), "again"));
  const Output dumped = read_output(file());
  first.kill();
  const RestoredTree second = restore_and_resume();
  expect_progress(dumped);
}

TEST_F(PreDump, AbandonedOneLeavesTheProgramRunning) {
  start();
  ASSERT_TRUE(pre_dump(criu_command(), program_->pid(), directory_.make("images/pre-1")));
  expect_progress(read_output(file()));
}

TEST_F(PreDump, FullDumpWorksAfterwards) {
  start();
  ASSERT_TRUE(pre_dump(criu_command(), program_->pid(), directory_.make("given-up/pre-1")));
  wait_for_writes();
  final_ = directory_.make("images");
  ASSERT_TRUE(dump(criu_command(), program_->pid(), final_));
  EXPECT_GE(page_bytes(final_), kMemoryBytes);
  const Output dumped = read_output(file());
  program_.reset();
  const RestoredTree tree = restore_and_resume();
  expect_progress(dumped);
}

}  // namespace
}  // namespace gcr::criu::test
