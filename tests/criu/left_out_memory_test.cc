// Memory that is left out of the CRIU images, sent separately, and filled in before a task runs.
#include "migrate-agent/criu/memory/left_out_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/pages/private_memory.h"
#include "migrate-agent/process/pages/process_memory.h"
#include "src/base/units.h"
#include "tests/criu/program.h"
#include "tests/criu/whole_runs.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;

/// Private memory bypasses CRIU, into files.
class Separate : public SeparateMemory {
 public:
  Separate(pid_t root, fs::path images) : memory_(root), images_(std::move(images)) {}

  LeftOut choose(pid_t task) override { return {memory_.of(task)}; }

  Status take(const std::string& name, pid_t task,
              const std::vector<AddressRange>& pages) override {
    GCR_ASSIGN(const ReadMemory read, process::open_memory(task));
    const UniqueFd image(
        ::open((images_ / (name + "-0.img")).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (const AddressRange& range : pages) {
      std::vector<std::byte> bytes(range.bytes());
      GCR_TRY(read(range.start, bytes));
      EXPECT_EQ(::pwrite(image.get(), bytes.data(), bytes.size(), static_cast<off_t>(range.start)),
                static_cast<ssize_t>(bytes.size()));
    }
    return {};
  }

 private:
  process::PrivateMemory memory_;
  const fs::path images_;
};

class LeftOutTest : public testing::Test {
 protected:
  fs::path file() const { return directory_.path() / "output"; }

  void start(const std::string& mode) {
    program_ = std::make_unique<Program>(file(), mode);
    wait_for_output(file(), [](const Output& output) { return output.lines > 20; });
  }

  Status dump() {
    GCR_ASSIGN(auto prepared, PreparedDump::create(criu_command(), program_->pid(), logs_));
    Separate separate(program_->pid(), images_);
    GCR_ASSIGN(const auto threads, prepared.run(to_files(images_), {}, &separate));
    EXPECT_FALSE(threads.empty());
    return {};
  }

  /// Disk blocks of the images whose names have this prefix.
  std::uint64_t bytes_of(const std::string& prefix) const {
    std::uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(images_)) {
      struct stat status {};
      if (!entry.path().filename().string().starts_with(prefix)) continue;
      EXPECT_EQ(::stat(entry.path().c_str(), &status), 0);
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    return bytes;
  }

  Directory directory_;
  const fs::path images_ = directory_.make("images");
  const fs::path logs_ = directory_.make("logs");
  std::unique_ptr<Program> program_;
};

TEST_F(LeftOutTest, PrivateMemorySentWithoutCriuArrivesIntact) {
  start("remember");
  const Status dumped = dump();
  ASSERT_TRUE(dumped) << dumped.error().message();
  const Output before = read_output(file());
  ASSERT_TRUE(kill_stopped(program_->process()));
  program_->reap();
  // Of 4 MiB, two thirds are filled: `own` of both processes is left out; `before_fork` and
  // `read_only` are left to CRIU, which has them once or twice.
  constexpr std::uint64_t kFilled = 2 * kMiB;
  EXPECT_GE(bytes_of("private-memory-"), 2 * kFilled);
  EXPECT_LE(bytes_of("private-memory-"), 4 * kFilled);
  EXPECT_GE(bytes_of("pages-"), 2 * kFilled);
  auto tree = restore(criu_command(), images_);
  ASSERT_TRUE(tree) << tree.error().message();
  for (const pid_t pid : procfs::stopped_tree(tree->pid())) {
    ASSERT_TRUE(resume_stopped(procfs::Process::open(pid).value()));
  }
  const Output now = wait_for_progress(file(), before, 20);
  expect_gapless(now);
  EXPECT_EQ(now.counts.size(), 2u);
  EXPECT_TRUE(now.others.empty()) << now.others.front();
}

TEST_F(LeftOutTest, ResumedSourceHasLostNothing) {
  start("remember");
  const Status dumped = dump();
  ASSERT_TRUE(dumped) << dumped.error().message();
  ASSERT_TRUE(resume_stopped(program_->process()));
  const Output now = wait_for_progress(file(), read_output(file()), 20);
  expect_gapless(now);
  EXPECT_TRUE(now.others.empty()) << now.others.front();
}

TEST_F(LeftOutTest, UnfillableMemoryLeavesNoProcess) {
  start("remember");
  const Status dumped = dump();
  ASSERT_TRUE(dumped) << dumped.error().message();
  const std::string image = images::memory_images(program_->pid()) + "-0.img";
  const std::string map = images::memory_map(program_->pid());
  ASSERT_TRUE(kill_stopped(program_->process()));
  program_->reap();
  const std::set<pid_t> before = all_processes();
  const UniqueFd file(::open((images_ / image).c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(file.get(), "x", 1, 0x1000), 1);  // no program has memory there
  const std::vector<AddressRange> nowhere = {{0x1000, 0x2000}};
  ASSERT_TRUE(images::write_file(images_ / map, images::image_of_ranges(nowhere)));
  const auto tree = restore(criu_command(), images_);
  ASSERT_FALSE(tree);
  EXPECT_EQ(tree.error().code(), Code::kDataLoss) << tree.error().message();
  EXPECT_EQ(all_processes(), before);
}

TEST(LeftOutMemory, FailedConversationDoesNotBlockCriu) {
  auto memory = LeftOutMemory::serve(::getpid());
  ASSERT_TRUE(memory) << memory.error().message();
  const UniqueFd criu = memory->take_criu_end();
  ASSERT_EQ(::send(criu.get(), "?", 1, 0), 1);  // no message
  char answer = 0;
  EXPECT_EQ(::recv(criu.get(), &answer, 1, 0), 0);
  const auto tasks = memory->finish();
  ASSERT_FALSE(tasks);
  EXPECT_EQ(tasks.error().code(), Code::kInternal);
}

}  // namespace
}  // namespace gcr::criu::test
