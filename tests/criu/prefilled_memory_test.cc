// Memory that is in place before a restore belongs to the restored processes, with its final
// content.
#include "migrate-agent/criu/memory/prefilled_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/pages/page_scan.h"
#include "migrate-agent/process/pages/private_memory.h"
#include "migrate-agent/process/pages/process_memory.h"
#include "migrate-agent/process/pages/shared_memory.h"
#include "src/base/units.h"
#include "tests/criu/program.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSentPage = PrefilledMemory::kPageBytes;
constexpr std::uint64_t kSentWindow = kMiB;

/// Sends the memory of a program as a source does: in rounds, and only what has changed.
class Prefilled : public testing::Test {
 protected:
  fs::path file() const { return directory_.path() / "output"; }

  void start(const std::string& mode) {
    program_ = std::make_unique<Program>(file(), mode);
    wait_for_output(file(), [](const Output& output) {
      return output.counts.size() == 2 && output.lines > 20;
    });
  }

  void prepare_restore(const std::set<pid_t>& used) {
    auto restore = PreparedRestore::create(criu_command(), images_, used);
    ASSERT_TRUE(restore) << restore.error().message();
    restore_.emplace(std::move(*restore));
  }

  /// A round, while the program runs.
  void send_round() {
    process::PrivateMemory memory(program_->pid());
    for (const pid_t pid : procfs::tree(program_->pid())) {
      const auto pages = process::present_pages(pid, memory.of(pid));
      ASSERT_TRUE(pages);
      const ReadMemory read = process::open_memory(pid).value();
      const Status sent = send(images::memory_images(pid), *pages,
                               [&](std::uint64_t address, std::span<std::byte> bytes) {
                                 if (!read(address, bytes)) std::ranges::fill(bytes, std::byte{0});
                                 return Status();
                               });
      ASSERT_TRUE(sent) << sent.error().message();
    }
    for (const process::SharedMemory& memory : shared()) ASSERT_NO_FATAL_FAILURE(send(memory));
  }

  void dump() {
    auto prepared = PreparedDump::create(criu_command(), program_->pid(), logs_);
    ASSERT_TRUE(prepared) << prepared.error().message();
    Separate separate(*this);
    const auto dumped = prepared->run(
        [this](const auto& name, UniqueFd content) { return take(name, content); }, {}, &separate);
    ASSERT_TRUE(dumped) << dumped.error().message();
    for (const process::SharedMemory& memory : separate.memories) {
      ASSERT_NO_FATAL_FAILURE(send(memory));
      ASSERT_TRUE(images::write_file(images_ / images::shared_memory_map(memory.inode),
                                     images::image_of_ranges(process::pages_of(memory).value())));
    }
    output_ = read_output(file());
    ASSERT_TRUE(kill_stopped(program_->process()));
    program_->reap();
  }

  /// The processes resume and have lost nothing, including marks for huge pages.
  void restore(bool with_huge_pages = false) {
    auto tree = restore_->run(own_rights(images_), names_);
    ASSERT_TRUE(tree) << tree.error().message();
    for (const pid_t pid : procfs::stopped_tree(tree->pid())) {
      const std::string mappings = procfs::read_text(fmt::format("/proc/{}/smaps", pid));
      EXPECT_EQ(mappings.find(" hg") != std::string::npos, with_huge_pages);
      ASSERT_TRUE(resume_stopped(procfs::Process::open(pid).value()));
    }
    const Output now = wait_for_progress(file(), output_, 40);
    expect_gapless(now);
    EXPECT_EQ(now.counts.size(), 2u);
    EXPECT_TRUE(now.others.empty()) << now.others.front();
  }

  /// As a source does it: what CRIU leaves out of the dump, and what is sent of it then.
  struct Separate : SeparateMemory {
    explicit Separate(Prefilled& test) : test(test), memory(test.program_->pid()) {}

    LeftOut choose(pid_t task) override {
      memory.keep_joinable(task);
      LeftOut left_out{memory.of(task)};
      memories = test.shared();
      for (const process::SharedMemory& one : memories) {
        left_out.shared.push_back({one.device, one.inode});
      }
      return left_out;
    }

    Status take(const std::string& name, pid_t task,
                const std::vector<AddressRange>& pages) override {
      GCR_ASSIGN(const ReadMemory read, process::open_memory(task));
      return test.send(name, pages, read);
    }

    Prefilled& test;
    process::PrivateMemory memory;
    std::vector<process::SharedMemory> memories;
  };

  Directory directory_;
  const fs::path images_ = directory_.make("images");
  const fs::path logs_ = directory_.make("logs");
  std::unique_ptr<Program> program_;
  std::optional<PreparedRestore> restore_;

  bool places_shared_ = true;

  std::vector<process::SharedMemory> shared() const {
    auto memories = process::shared_memories(procfs::tree(program_->pid()), {});
    EXPECT_TRUE(memories);
    return memories ? *std::move(memories) : std::vector<process::SharedMemory>();
  }

  void send(const process::SharedMemory& memory) {
    const auto pages = process::pages_of(memory);
    ASSERT_TRUE(pages);
    const Status sent =
        send(images::shared_memory_images(memory.inode), *pages, process::reader_of(memory));
    ASSERT_TRUE(sent) << sent.error().message();
  }

 private:
  Status take(const std::string& name, const UniqueFd& content) {
    std::ofstream out(images_ / name, std::ios::binary);
    std::vector<char> bytes(kMiB);
    ssize_t got = 0;
    while ((got = ::read(content.get(), bytes.data(), bytes.size())) > 0) {
      out.write(bytes.data(), got);
    }
    return {};
  }

  Status send(const std::string& name, const std::vector<AddressRange>& ranges,
              const ReadMemory& read) {
    const auto number =
        static_cast<std::uint32_t>(numbers_.try_emplace(name, numbers_.size() + 1).first->second);
    const std::string image = name + "-0.img";
    names_[number] = {image};
    is_shared_[number] = name.starts_with(gcr::images::kSharedMemory);
    const UniqueFd file(::open((images_ / image).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    std::map<std::uint64_t, std::string> windows;
    for (const AddressRange& range : ranges) {
      for (std::uint64_t at = range.start; at < range.end;) {
        const std::uint64_t window = at / kSentWindow * kSentWindow;
        const std::uint64_t end = std::min(range.end, window + kSentWindow);
        std::string& content = windows.try_emplace(window, kSentWindow, '\0').first->second;
        GCR_TRY(
            read(at, std::as_writable_bytes(std::span(content)).subspan(at - window, end - at)));
        at = end;
      }
    }
    for (auto& [window, content] : windows) {
      GCR_TRY(send_window(number, window, content, file));
    }
    return {};
  }

  Status send_window(std::uint32_t number, std::uint64_t address, const std::string& content,
                     const UniqueFd& file) {
    std::string& sent = sent_.try_emplace({number, address}, kSentWindow, '\0').first->second;
    PrefilledMemory::Pages pages;
    std::string packed;
    for (std::size_t page = 0; page < PrefilledMemory::kWindowPages; ++page) {
      if (content.compare(page * kSentPage, kSentPage, sent, page * kSentPage, kSentPage) == 0)
        continue;
      pages.set(page);
      packed.append(content, page * kSentPage, kSentPage);
    }
    if (pages.none()) return {};
    sent = content;
    const bool may_be_placed = places_shared_ || !is_shared_[number];
    GCR_ASSIGN(const bool placed,
               !may_be_placed ? Result<bool>(false)
                              : restore_->place({number, is_shared_[number], address, pages},
                                                std::as_bytes(std::span(packed))));
    for (std::size_t page = 0; !placed && page < PrefilledMemory::kWindowPages; ++page) {
      if (!pages[page]) continue;
      const auto at = static_cast<off_t>(address + page * kSentPage);
      EXPECT_EQ(::pwrite(file.get(), content.data() + page * kSentPage, kSentPage, at),
                static_cast<ssize_t>(kSentPage));
    }
    return {};
  }

  Output output_;
  std::map<std::string, std::size_t> numbers_;
  std::map<std::uint32_t, bool> is_shared_;
  std::map<std::uint32_t, std::vector<std::string>> names_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> sent_;
};

/// The heaps of both processes have 128 MiB, minus what they release.
constexpr std::uint64_t kMuch = 32 * kMiB;

TEST_F(Prefilled, PrefilledHeapHasItsFinalContent) {
  for (const char* const mode : {"heap", "huge-heap"}) {
    SCOPED_TRACE(mode);
    fs::remove(file());
    start(mode);
    ASSERT_NO_FATAL_FAILURE(prepare_restore({program_->pid(), program_->pid() + 1}));
    for (int round = 0; round < 3; ++round) send_round();
    dump();
    restore(mode == std::string("huge-heap"));
    EXPECT_GE(restore_->taken_bytes(), kMuch);
    restore_.reset();
    fs::remove_all(images_);
    fs::create_directory(images_);
  }
}

TEST_F(Prefilled, MemoryThatCannotBeAdoptedIsCopied) {
  start("loose-heap");
  ASSERT_NO_FATAL_FAILURE(prepare_restore({program_->pid(), program_->pid() + 1}));
  for (int round = 0; round < 2; ++round) send_round();
  dump();
  restore();
  EXPECT_EQ(restore_->taken_bytes(), 0u);
}

TEST_F(Prefilled, RestartedCriuGetsAllMemory) {
  start("heap");
  ASSERT_NO_FATAL_FAILURE(prepare_restore({}));
  send_round();
  dump();
  restore();
  EXPECT_GE(restore_->taken_bytes(), kMuch);
}

/// Of the images of memory that CRIU has dumped.
std::uint64_t bytes_by_criu(const fs::path& images) {
  std::uint64_t bytes = 0;
  for (const std::string& name : images::names(images)) {
    if (name.starts_with("pages-")) bytes += fs::file_size(images / name);
  }
  return bytes;
}

/// Both processes share 32 MiB, and have the same amount each that no other process has.
constexpr std::uint64_t kShared = 3 * 32 * kMiB;

TEST_F(Prefilled, PrefilledSharedMemoryHasItsFinalContent) {
  start("shared");
  EXPECT_EQ(shared().size(), 3u);
  ASSERT_NO_FATAL_FAILURE(prepare_restore({program_->pid(), program_->pid() + 1}));
  for (int round = 0; round < 3; ++round) send_round();
  dump();
  EXPECT_LT(bytes_by_criu(images_), kShared / 4);
  restore();
  EXPECT_GE(restore_->taken_bytes(), kShared / 4);
}

TEST_F(Prefilled, RestartedCriuGetsSharedMemory) {
  start("shared");
  ASSERT_NO_FATAL_FAILURE(prepare_restore({}));
  send_round();
  dump();
  restore();
  EXPECT_GE(restore_->taken_bytes(), kShared / 4);
}

TEST_F(Prefilled, SharedMemoryInFilesIsReadyWhenTasksMapIt) {
  start("shared");
  ASSERT_NO_FATAL_FAILURE(prepare_restore({program_->pid(), program_->pid() + 1}));
  places_shared_ = false;
  for (int round = 0; round < 2; ++round) send_round();
  dump();
  EXPECT_LT(bytes_by_criu(images_), kShared / 4);
  restore();
  EXPECT_EQ(restore_->taken_bytes(), 0u);
}

}  // namespace
}  // namespace gcr::criu::test
