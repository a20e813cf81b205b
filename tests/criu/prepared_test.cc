// Prepared sessions and streamed dumps with a real CRIU.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "tests/criu/program.h"
#include "tests/criu/whole_runs.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;

class Prepared : public testing::Test {
 protected:
  fs::path file() const { return directory_.path() / "output"; }
  fs::path images() const { return directory_.make("images"); }
  fs::path logs() const { return directory_.make("logs"); }

  Output start(const std::string& mode = "count") {
    program_ = std::make_unique<Program>(file(), mode);
    return wait_for_progress(file(), {}, 5);
  }

  PreparedDump prepare(const DumpOptions& options = {}) {
    auto prepared = PreparedDump::create(criu_command(), program_->pid(), logs(), options);
    EXPECT_TRUE(prepared) << prepared.error().message();
    return std::move(*prepared);
  }

  void kill_program() {
    ASSERT_TRUE(kill_stopped(program_->process()));
    program_->reap();
  }

  Directory directory_;
  std::unique_ptr<Program> program_;
};

TEST_F(Prepared, StreamedDumpRestoresAndResumesWithoutGap) {
  start();
  PreparedDump prepared = prepare();
  auto restore = PreparedRestore::create(criu_command(), images(), {program_->pid()});
  ASSERT_TRUE(restore) << restore.error().message();
  wait_for_progress(file(), read_output(file()), 5);  // preparing costs it nothing
  const auto report = prepared.run(to_files(images()));
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(state_of(program_->pid()), 'T');
  const Output dumped = read_output(file());
  kill_program();
  auto tree = restore->run(own_rights(images()));
  ASSERT_TRUE(tree) << tree.error().message();
  EXPECT_EQ(state_of(tree->pid()), 'T');
  EXPECT_EQ(read_output(file()).lines, dumped.lines);
  ASSERT_TRUE(resume_stopped(tree->root()));
  expect_gapless(wait_for_progress(file(), dumped, 20));
}

/// A process that may signal CRIU's restored tasks can make the restore fail, and no more.
TEST_F(Prepared, ConstantlySignalledRestoreFinishes) {
  start();
  const auto report = prepare().run(to_files(images()));
  ASSERT_TRUE(report) << report.error().message();
  const pid_t number = program_->pid();
  kill_program();
  const fs::path first = images() / "inventory.img";
  const fs::path kept = images() / "inventory.kept";
  fs::copy_file(first, kept);
  const auto copies = [number] {
    std::vector<pid_t> found = procfs::processes();
    std::erase_if(found, [&](pid_t pid) {
      const auto numbers = procfs::namespace_pids(std::to_string(pid));
      return numbers.size() < 2 || numbers.back() != number;
    });
    return found;
  };
  for (int i = 0; i < 2; ++i) {
    auto restore = PreparedRestore::create(criu_command(), images(), {number});
    ASSERT_TRUE(restore) << restore.error().message();
    fs::copy_file(kept, first);
    std::jthread outsider([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        for (const pid_t pid : copies()) ::kill(pid, SIGCONT);
      }
    });
    (void)restore->run(own_rights(images()));
    outsider.request_stop();
    fs::remove(first);
  }
  EXPECT_TRUE(copies().empty());
  fs::copy_file(kept, first);
  const auto tree = restore(criu_command(), images());
  EXPECT_TRUE(tree) << tree.error().message();
}

TEST_F(Prepared, BlockingCallsContinueOnBothSides) {
  start("wait");
  const auto report = prepare().run(to_files(images()));
  ASSERT_TRUE(report) << report.error().message();
  ASSERT_TRUE(resume_stopped(program_->process()));
  expect_gapless(wait_for_progress(file(), read_output(file()), 200));
  ::kill(program_->pid(), SIGSTOP);
  ASSERT_TRUE(procfs::wait_until_stopped(program_->pid()));
  kill_program();
  // The copy counts on from the dump: only its blocked threads matter here.
  auto tree = restore(criu_command(), images());
  ASSERT_TRUE(tree) << tree.error().message();
  ASSERT_TRUE(resume_stopped(tree->root()));
  const Output now = wait_for_output(file(), [before = read_output(file())](const Output& output) {
    return output.lines >= before.lines + 200;
  });
  EXPECT_TRUE(now.others.empty()) << now.others.front();
}

/// The test's only child except the program.
void stop_criu(pid_t program) {
  for (const pid_t pid : procfs::tree(::getpid())) {
    if (pid == ::getpid() || pid == program) continue;
    ::kill(pid, SIGSTOP);
    EXPECT_TRUE(procfs::wait_until_stopped(pid));
  }
}

/// Stops CRIU when it asks.
class StoppingCriu : public SeparateMemory {
 public:
  explicit StoppingCriu(pid_t program) : program_(program) {}
  LeftOut choose(pid_t) override {
    stop_criu(program_);
    return {};
  }
  Status take(const std::string&, pid_t, const std::vector<AddressRange>&) override { return {}; }

 private:
  const pid_t program_;
};

constexpr std::chrono::seconds kShortPatience{1};

/// CRIU waits for the tasks, which contain its code by then, and they run on.
TEST_F(Prepared, HangingCriuIsKilled) {
  start();
  DumpOptions options;
  options.patience = kShortPatience;
  StoppingCriu memory(program_->pid());
  const auto failed = prepare(options).run(to_files(images()), {}, &memory);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kTimeout) << failed.error().message();
  expect_gapless(wait_for_progress(file(), read_output(file()), 20));
  const auto report = prepare().run(to_files(images()));
  ASSERT_TRUE(report) << report.error().message();
}

TEST_F(Prepared, CriuWaitingForItsReaderIsNotKilled) {
  start("remember");
  DumpOptions options;
  options.patience = kShortPatience;
  const auto report =
      prepare(options).run([&](const std::string& name, UniqueFd content) -> Status {
        if (name.starts_with("pages-")) std::this_thread::sleep_for(3 * kShortPatience);
        return to_files(images())(name, std::move(content));
      });
  EXPECT_TRUE(report) << report.error().message();
}

TEST_F(Prepared, DumpFailsIfItsMemoryIsNotRead) {
  start();
  PreparedDump prepared = prepare();
  const auto report = prepared.run([](const std::string& name, UniqueFd) -> Status {
    if (!name.starts_with("pages-")) return {};
    return Error(Code::kUnavailable, "the network has gone");
  });
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kUnavailable) << report.error().message();
  expect_gapless(wait_for_progress(file(), read_output(file()), 20));
}

TEST_F(Prepared, DumpFailsIfItsMemoryIsLost) {
  start();
  PreparedDump prepared = prepare();
  const auto report = prepared.run([](const std::string& name, UniqueFd content) -> Status {
    char bytes[65536];
    while (::read(content.get(), bytes, sizeof(bytes)) > 0) {
    }
    if (!name.starts_with("pages-")) return {};
    return Error(Code::kUnavailable, "the network has gone");
  });
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kUnavailable) << report.error().message();
  expect_gapless(wait_for_progress(file(), read_output(file()), 20));
}

TEST_F(Prepared, DumpFailsIfItsLastImageIsRefused) {
  start();
  PreparedDump prepared = prepare();
  const TakeImage take = to_files(images());
  const auto report = prepared.run([&](const std::string& name, UniqueFd content) -> Status {
    if (name == "pstree.img") return Error(Code::kUnavailable, "the network has gone");
    return take(name, std::move(content));
  });
  ASSERT_FALSE(report);
  expect_gapless(wait_for_progress(file(), read_output(file()), 20));
}

TEST_F(Prepared, RefusedDumpReportsCriusMessage) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd ours(ends[0]);
  program_ = std::make_unique<Program>(file(), "count", ends[1]);
  ::close(ends[1]);
  const Output before = wait_for_progress(file(), {}, 5);
  const auto report = prepare().run(to_files(images()));
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kUnsupported);
  EXPECT_NE(report.error().message().find("Error (criu/"), std::string::npos)
      << report.error().message();
  expect_gapless(wait_for_progress(file(), before, 20));
}

TEST_F(Prepared, UnusedSessionsLeaveNothing) {
  start();
  const std::set<pid_t> before = all_processes();
  {
    const PreparedDump prepared = prepare();
    const auto restore = PreparedRestore::create(criu_command(), images(), {});
    ASSERT_TRUE(restore) << restore.error().message();
    EXPECT_GT(all_processes().size(), before.size());
  }
  EXPECT_EQ(all_processes(), before);
  expect_gapless(wait_for_progress(file(), read_output(file()), 20));
}

TEST_F(Prepared, DumpOfAnEndedProcessIsAnError) {
  start();
  PreparedDump prepared = prepare();
  program_.reset();
  const auto report = prepared.run(to_files(images()));
  ASSERT_FALSE(report);
}

TEST_F(Prepared, RestoreThatOccupiesAPidOfTheTreeRestarts) {
  const pid_t pid = (start(), program_->pid());
  ASSERT_TRUE(prepare().run(to_files(images())));
  const Output dumped = read_output(file());
  const fs::path there = directory_.make("there");
  // All numbers up to just before the program's own are reported as taken.
  std::set<pid_t> used;
  for (pid_t taken = 1; taken < pid - 10; ++taken) used.insert(taken);
  auto restore = PreparedRestore::create(criu_command(), there, used);
  ASSERT_TRUE(restore) << restore.error().message();
  for (const auto& entry : fs::directory_iterator(images())) fs::copy(entry, there);
  kill_program();
  auto tree = restore->run(own_rights(there));
  ASSERT_TRUE(tree) << tree.error().message();
  EXPECT_EQ(procfs::namespace_pids(std::to_string(tree->pid())).back(), pid);
  ASSERT_TRUE(resume_stopped(tree->root()));
  expect_gapless(wait_for_progress(file(), dumped, 20));
}

TEST_F(Prepared, RestoreOfATruncatedImageFailsAndLeavesNothing) {
  const std::set<pid_t> before = all_processes();
  const pid_t pid = (start(), program_->pid());
  ASSERT_TRUE(prepare().run(to_files(images())));
  kill_program();
  for (const std::string& name :
       {std::string("pages-1.img"), "core-" + std::to_string(pid) + ".img",
        std::string("pstree.img"), std::string("inventory.img")}) {
    const fs::path there = directory_.make("there-" + name);
    auto restore = PreparedRestore::create(criu_command(), there, {pid});
    ASSERT_TRUE(restore) << restore.error().message();
    for (const auto& entry : fs::directory_iterator(images())) fs::copy(entry, there);
    fs::resize_file(there / name, fs::file_size(there / name) / 2);
    const auto tree = restore->run(own_rights(there));
    EXPECT_FALSE(tree) << name;
    restore = Error(Code::kInternal, "over");
    EXPECT_EQ(all_processes(), before) << name;
  }
}

TEST_F(Prepared, RestoreWithoutImagesFailsAndLeavesNothing) {
  const std::set<pid_t> before = all_processes();
  {
    auto restore = PreparedRestore::create(criu_command(), images(), {});
    ASSERT_TRUE(restore) << restore.error().message();
    const auto tree = restore->run({});
    ASSERT_FALSE(tree);
    EXPECT_EQ(tree.error().code(), Code::kNotFound);
  }
  EXPECT_EQ(all_processes(), before);
}

}  // namespace
}  // namespace gcr::criu::test
