// Pages of zeros dropped from real processes under the preload library.
#include "migrate-agent/process/pages/zero_pages.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <filesystem>
#include <map>
#include <thread>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/pages/mappings.h"
#include "src/base/zeros.h"
#include "tests/preload/door/door_helpers.h"
#include "tests/support/mapping_flags.h"

namespace gcr::test {
namespace {

using process::DroppedPages;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kBytes = 8 * kMiB;

class ZeroPagesTest : public testing::Test {
 protected:
  struct Regions {
    std::uint64_t zeros, mixed, locked, shared, file;
  };

  static Regions make_regions(Subject& subject) {
    subject.ask("init");
    const auto addresses = subject.ask("make");
    if (addresses.size() != 5) throw std::runtime_error("no regions");
    wait_until_all_wait(subject.pid());
    return {addresses[0], addresses[1], addresses[2], addresses[3], addresses[4]};
  }

  /// Until no thread has run between two reads: the software driver's threads have then mapped what
  /// they need.
  static void wait_until_all_wait(pid_t pid) {
    const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    for (std::map<std::string, std::string> before;;) {
      std::map<std::string, std::string> runs;
      bool all_wait = true;
      for (const auto& task : std::filesystem::directory_iterator(tasks)) {
        auto fields =
            procfs::status_fields(std::to_string(pid) + "/task/" + task.path().filename().string());
        all_wait = all_wait && fields["State"].starts_with('S');
        runs[task.path().filename()] = fields["voluntary_ctxt_switches"];
      }
      if (all_wait && runs == before) return;
      before = std::move(runs);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  /// Present pages in the memory of a process from `address` on.
  static std::uint64_t present_pages(pid_t pid, std::uint64_t address, std::uint64_t bytes) {
    const std::string path = "/proc/" + std::to_string(pid) + "/pagemap";
    const UniqueFd pagemap(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::vector<std::uint64_t> entries(bytes / kPage);
    EXPECT_EQ(::pread(pagemap.get(), entries.data(), entries.size() * 8,
                      static_cast<off_t>(address / kPage * 8)),
              static_cast<ssize_t>(entries.size() * 8));
    std::uint64_t present = 0;
    for (const std::uint64_t entry : entries) present += entry >> 63;
    return present;
  }
};

TEST_F(ZeroPagesTest, ZerosAreDroppedAndAllReadsTheSame) {
  Subject subject;
  const Regions regions = make_regions(subject);
  gpu::Door door = door_of(subject);
  const DroppedPages dropped =
      good(process::drop_zero_pages(door, procfs::Process::open(door.pid()).value()));
  EXPECT_EQ(present_pages(subject.pid(), regions.zeros, kBytes), 0u);
  EXPECT_EQ(present_pages(subject.pid(), regions.mixed, kBytes), (kBytes / kPage + 2) / 3);
  EXPECT_GE(dropped.dropped_bytes, kBytes + kBytes / 3 * 2 - kPage);
  EXPECT_GE(dropped.scanned_bytes, 2 * kBytes);
  EXPECT_GT(dropped.duration, dropped.held);
  EXPECT_EQ(subject.value("wrong"), 0u);
}

TEST_F(ZeroPagesTest, LockedSharedAndFileMemoryIsLeftAlone) {
  Subject subject;
  const Regions regions = make_regions(subject);
  gpu::Door door = door_of(subject);
  good(process::drop_zero_pages(door, procfs::Process::open(door.pid()).value()));
  EXPECT_EQ(present_pages(subject.pid(), regions.locked, kMiB), kMiB / kPage);
  EXPECT_EQ(present_pages(subject.pid(), regions.shared, kMiB), kMiB / kPage);
  EXPECT_EQ(present_pages(subject.pid(), regions.file, kPage), 1u);
  EXPECT_EQ(subject.value("wrong"), 0u);
}

TEST_F(ZeroPagesTest, AllZeroMappingIsMarkedForHugePages) {
  Subject subject;
  const Regions regions = make_regions(subject);
  gpu::Door door = door_of(subject);
  good(process::drop_zero_pages(door, procfs::Process::open(door.pid()).value()));
  const bool kernel_has_them = std::filesystem::exists("/sys/kernel/mm/transparent_hugepage");
  EXPECT_EQ(flags_at(subject.pid(), regions.zeros).find(" hg") != std::string::npos,
            kernel_has_them);
  EXPECT_EQ(flags_at(subject.pid(), regions.mixed).find(" hg"), std::string::npos);
}

TEST_F(ZeroPagesTest, MemorySentWithoutCriuIsMarkedButNotDropped) {
  Subject subject;
  const Regions regions = make_regions(subject);
  gpu::Door door = door_of(subject);
  std::vector<AddressRange> all;
  for (const auto& mapping : process::read_mappings(subject.pid()).value()) {
    all.push_back(mapping.range);
  }
  const DroppedPages dropped =
      good(process::drop_zero_pages(door, procfs::Process::open(door.pid()).value(), all));
  EXPECT_EQ(dropped.scanned_bytes, 0u);
  EXPECT_EQ(dropped.held.count(), 0) << "it was stopped without need";
  EXPECT_EQ(present_pages(subject.pid(), regions.zeros, kBytes), kBytes / kPage);
  const bool kernel_has_them = std::filesystem::exists("/sys/kernel/mm/transparent_hugepage");
  EXPECT_EQ(flags_at(subject.pid(), regions.zeros).find(" hg") != std::string::npos,
            kernel_has_them);
  EXPECT_EQ(flags_at(subject.pid(), regions.mixed).find(" hg"), std::string::npos);

  // All but one: that one is scanned.
  std::erase_if(all, [&](const AddressRange& range) { return range.start == regions.zeros; });
  const DroppedPages again =
      good(process::drop_zero_pages(door, procfs::Process::open(door.pid()).value(), all));
  EXPECT_EQ(again.scanned_bytes, kBytes);
  EXPECT_EQ(again.dropped_bytes, kBytes);
  EXPECT_EQ(subject.value("wrong"), 0u);
}

TEST_F(ZeroPagesTest, ConstantWriterLosesNothing) {
  Subject subject;
  make_regions(subject);
  subject.ask("write");
  gpu::Door door = door_of(subject);
  std::uint64_t rounds = 0;
  for (int cycle = 0; cycle < 100; ++cycle) {
    good(process::drop_zero_pages(door, procfs::Process::open(door.pid()).value()));
    const std::uint64_t before = rounds;
    while (rounds <= before) rounds = subject.value("progress");
  }
  EXPECT_EQ(subject.ask("rest").at(1), 0u) << "writes were lost";
  EXPECT_EQ(subject.value("wrong"), 0u);
}

TEST_F(ZeroPagesTest, ProcessInANestedPidNamespaceWorksToo) {
  Subject subject(in_new_pid_namespace());
  const Regions regions = make_regions(subject);
  subject.ask("write");
  gpu::Door door = door_of(subject);
  good(process::drop_zero_pages(door, procfs::Process::open(door.pid()).value()));
  EXPECT_EQ(present_pages(subject.pid(), regions.zeros, kBytes), 0u);
  EXPECT_EQ(subject.ask("rest").at(1), 0u);
  EXPECT_EQ(subject.value("wrong"), 0u);
}

TEST_F(ZeroPagesTest, TracedProcessIsLeftAlone) {
  Subject subject;
  const Regions regions = make_regions(subject);
  gpu::Door door = door_of(subject);
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, subject.pid(), nullptr, 0), 0);
  const auto dropped = process::drop_zero_pages(door, procfs::Process::open(door.pid()).value());
  ASSERT_FALSE(dropped);
  EXPECT_EQ(dropped.error().code(), Code::kPermissionDenied);
  EXPECT_EQ(present_pages(subject.pid(), regions.zeros, kBytes), kBytes / kPage);
  ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, subject.pid(), nullptr, 0), 0);
  ASSERT_EQ(::waitpid(subject.pid(), nullptr, __WALL), subject.pid());
  ASSERT_EQ(::ptrace(PTRACE_DETACH, subject.pid(), nullptr, 0), 0);
  EXPECT_EQ(subject.value("wrong"), 0u);
  good(process::drop_zero_pages(door, procfs::Process::open(door.pid()).value()));
}

TEST_F(ZeroPagesTest, DoorDropsOnlyWholeUserPagesButNotItsStack) {
  Subject subject;
  const Regions regions = make_regions(subject);
  gpu::Door door = door_of(subject);
  const std::uint64_t stack = good(door.hello()).door_stack / kPage * kPage;
  const gpu::Door::Pages wrong[] = {
      {0, kPage},         {regions.zeros + 1, kPage}, {regions.zeros, kPage + 1},
      {regions.zeros, 0}, {~0ull << 12, kPage},       {regions.zeros, ~0ull << 12},
      {stack, kPage},     {stack - kMiB, 2 * kMiB},   {kPage, stack}};
  for (const auto& pages : wrong) {
    // The valid range before it is not dropped either.
    const gpu::Door::Pages both[] = {{regions.zeros, kPage}, pages};
    const auto dropped = door.drop_pages(both);
    ASSERT_FALSE(dropped) << std::hex << pages.address << ", " << pages.bytes;
    EXPECT_EQ(dropped.error().code(), Code::kRefused);
  }
  EXPECT_EQ(present_pages(subject.pid(), regions.zeros, kPage), 1u);
  const gpu::Door::Pages locked[] = {{regions.locked, kPage}};
  const auto dropped = door.drop_pages(locked);
  ASSERT_FALSE(dropped);
  EXPECT_EQ(dropped.error().code(), Code::kNotFound);
}

constexpr char kEntry[] =
    "7f0000000000-7f0000002000 rw-p 00000000 00:00 0 {}\n"
    "Size:                  8 kB\nAnonymous:             4 kB\nVmFlags: rd wr mr mw me ac {}\n";

std::string entry(const std::string& name, const std::string& flags) {
  std::string text = kEntry;
  text.replace(text.find("{}"), 2, name);
  return text.replace(text.find("{}"), 2, flags);
}

TEST(SmapsTest, OnlyPlainPrivateAnonymousMemoryIsDroppable) {
  const auto is_plain = [](const std::string& text) {
    const auto mappings = process::parse_smaps(text);
    return mappings && mappings->size() == 1 && mappings->front().plain;
  };
  EXPECT_TRUE(is_plain(entry("", "")));
  EXPECT_TRUE(is_plain(entry("[heap]", "sd")));
  EXPECT_TRUE(is_plain(entry("[anon: glibc: malloc]", "")));
  EXPECT_FALSE(is_plain(entry("[stack]", "")));
  for (const char* flag : {"sh", "gd", "pf", "io", "lo", "ht", "mm", "um", "sd lo"}) {
    EXPECT_FALSE(is_plain(entry("", flag))) << flag;
  }
  std::string read_only = entry("", "");
  read_only.replace(read_only.find("rw-p"), 4, "r--p");
  EXPECT_FALSE(is_plain(read_only));
  std::string of_a_file = entry("/bin/true", "");
  of_a_file.replace(of_a_file.find(" 0 /"), 3, " 12 ");
  EXPECT_FALSE(is_plain(of_a_file));
}

TEST(SmapsTest, TrackedMemoryIsPlainAndReported) {
  const auto mappings = process::parse_smaps(entry("", "sd uw"));
  ASSERT_TRUE(mappings);
  EXPECT_TRUE(mappings->front().plain);
  EXPECT_TRUE(mappings->front().tracked);
  EXPECT_FALSE(process::parse_smaps(entry("", "sd"))->front().tracked);
}

TEST(SmapsTest, RangesAndSizesAreRead) {
  const auto mappings = process::parse_smaps(entry("", "") + entry("/[aio] (deleted)", ""));
  ASSERT_TRUE(mappings);
  ASSERT_EQ(mappings->size(), 2u);
  EXPECT_EQ(mappings->front().range, (AddressRange{0x7f0000000000, 0x7f0000002000}));
  EXPECT_EQ(mappings->front().anonymous_bytes, 4096u);
  EXPECT_FALSE(mappings->front().asynchronous_io);
  EXPECT_TRUE(mappings->back().asynchronous_io);
}

TEST(SmapsTest, OtherFilesAreRefused) {
  const std::string whole = entry("", "");
  EXPECT_FALSE(process::parse_smaps("hello\n"));
  EXPECT_FALSE(process::parse_smaps("VmFlags: rd\n"));
  EXPECT_FALSE(process::parse_smaps(whole.substr(0, whole.find("VmFlags"))));
  EXPECT_FALSE(process::parse_smaps("7f0000002000-7f0000000000 rw-p 0 0:0 0\nVmFlags: rd\n"));
}

TEST(IsZeroTest, EverySetBitIsSeen) {
  alignas(64) std::array<std::byte, kPage> page{};
  EXPECT_TRUE(is_zero(page));
  for (std::size_t at = 0; at < page.size(); ++at) {
    page[at] = std::byte{0x80};
    EXPECT_FALSE(is_zero(page)) << at;
    page[at] = std::byte{0};
  }
}

}  // namespace
}  // namespace gcr::test
