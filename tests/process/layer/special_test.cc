// Attributes, sparse files, what is not carried, and files that change meanwhile.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "tests/process/layer/fixture.h"
#include "tests/support/wait_until.h"

namespace gcr::layer::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using ContainersFiles = TwoContainers;

/// An access control list of user 1000, as the kernel stores it.
std::string list_of_user(char rights) {
  std::string list("\2\0\0\0", 4);
  const auto add = [&list](char tag, char may, std::uint32_t id) {
    list += {tag, 0, may, 0};
    for (int shift = 0; shift < 32; shift += 8) list += static_cast<char>(id >> shift);
  };
  add(1, 6, ~0u);
  add(2, rights, 1000);
  add(4, 4, ~0u);
  add(16, 6, ~0u);
  add(32, 4, ~0u);
  return list;
}

std::string capability() {
  vfs_cap_data data{};
  data.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE;
  data.data[0].permitted = 1u << CAP_NET_BIND_SERVICE;
  return {reinterpret_cast<const char*>(&data), sizeof(data)};
}

TEST_F(ContainersFiles, AttributesAreSameAtTheDestination) {
  start();
  source_->run("echo > new; mkdir dir; mkfifo fifo");
  set("usr/bin/tool", "security.capability", capability());
  set("new", "user.one", std::string("\0=\n\xff", 4));
  set("new", "user.empty", "");
  set("new", "user.large", std::string(60'000, 'x'));
  set("etc/passwd", "system.posix_acl_access", list_of_user(6));
  set("fifo", "system.posix_acl_access", list_of_user(6));
  set("dir", "system.posix_acl_default", list_of_user(7));
  set("dir", "user.dir", "1");
  set("usr", "user.of_image", "1");
  source_->run("echo > dir/inherits; mkdir dir/too");
  ASSERT_NO_FATAL_FAILURE(expect_carried());

  set("new", "user.one", "two");
  source_->run("chown 1000 usr/bin/tool; echo more >> etc/passwd; echo > dir/later");
  for (const char* const name : {"user.large", "user.empty"}) {
    ASSERT_EQ(::removexattr(at_source("new").c_str(), name), 0);
  }
  ASSERT_EQ(::removexattr(at_source("usr").c_str(), "user.of_image"), 0);
  ASSERT_EQ(::removexattr(at_source("dir").c_str(), "system.posix_acl_default"), 0);
  source_->run("echo > dir/last");
  expect_carried();
}

TEST_F(ContainersFiles, AttributesThatCannotBeCarriedAreNamed) {
  start();
  source_->run("echo > new");
  set("new", "trusted.mine", "1");
  auto found = scan(*find(from_, "/"), kLimits);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_THAT(found->notes.list(),
              ElementsAre(AllOf(HasSubstr("/new"), HasSubstr("trusted.mine"))));
  set("new", "user.a=b", "1");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("/new"), HasSubstr("user.a=b")));
  source_->run("rm new; echo > new");
  for (int i = 0; i < 5; ++i) set("new", "user." + std::to_string(i), std::string(60'000, 'x'));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("/new"), HasSubstr("extended attributes")));
}

TEST_F(ContainersFiles, NameOfAWhiteoutIsRefused) {
  start();
  source_->run("mkdir a; echo > a/.wh.x");
  EXPECT_THAT(refusal(), HasSubstr("/a/.wh.x"));
  source_->run("mv a/.wh.x a/.wh..wh..opq");
  EXPECT_THAT(refusal(), HasSubstr("/a/.wh..wh..opq"));
}

TEST_F(ContainersFiles, OtherDevicesAreRefusedByName) {
  start();
  source_->run("mknod etc/watchdog c 10 130");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("/etc/watchdog"), HasSubstr("10:130")));
  source_->run("rm etc/watchdog; mknod disk b 1 3");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("/disk"), HasSubstr("block")));
}

TEST_F(ContainersFiles, PathThatCannotBeOpenedInOneCallIsRefusedAndOneByteLessIsCarried) {
  start();
  UniqueFd directory(::open(at_source("").c_str(), O_PATH | O_DIRECTORY));
  const std::string name(254, 'd');
  for (int depth = 0; depth < 16; ++depth) {  // 16 names and slashes: 4080 bytes
    ASSERT_EQ(::mkdirat(directory.get(), name.c_str(), 0755), 0);
    directory = UniqueFd(::openat(directory.get(), name.c_str(), O_PATH | O_DIRECTORY));
    ASSERT_TRUE(directory);
  }
  const auto make = [&](std::size_t length) {
    const UniqueFd made(
        ::openat(directory.get(), std::string(length, 'f').c_str(), O_CREAT | O_WRONLY, 0600));
    ASSERT_EQ(::write(made.get(), "deep", 4), 4);
  };
  ASSERT_NO_FATAL_FAILURE(make(15));
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  ASSERT_EQ(::unlinkat(directory.get(), std::string(15, 'f').c_str(), 0), 0);
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  ASSERT_NO_FATAL_FAILURE(make(16));
  EXPECT_THAT(refusal(), HasSubstr("4096 bytes"));
}

TEST_F(ContainersFiles, ManyDirectoriesInEachOtherAreCarriedAndRemoved) {
  start();
  UniqueFd directory(::open(at_source("").c_str(), O_PATH | O_DIRECTORY));
  for (int depth = 0; depth < 500; ++depth) {
    ASSERT_EQ(::mkdirat(directory.get(), "d", 0755), 0);
    directory = UniqueFd(::openat(directory.get(), "d", O_PATH | O_DIRECTORY));
    ASSERT_TRUE(directory);
  }
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  source_->run("rm -r d");
  expect_carried();
}

TEST_F(ContainersFiles, SparseFileTakesNoSpaceAndNoTime) {
  start();
  source_->run(
      "truncate -s 1G s; printf x | dd of=s bs=1 seek=600M conv=notrunc status=none;"
      "truncate -s 10T huge");
  const auto file = pack(next_changes());
  ASSERT_TRUE(file) << file.error().message();
  struct stat status {};
  ASSERT_EQ(::fstat(file->get(), &status), 0);
  EXPECT_LT(status.st_size, 1 << 20);
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  ASSERT_EQ(::stat(at_destination("s").c_str(), &status), 0);
  EXPECT_LT(status.st_blocks * 512, 1 << 20);
}

TEST_F(ContainersFiles, FileOfManyExtentsIsCarried) {
  start();
  const UniqueFd file(::open(at_source("holes").c_str(), O_CREAT | O_WRONLY, 0600));
  for (off_t at = 0; at < 40'000; ++at) {
    ASSERT_EQ(::pwrite(file.get(), "x", 1, at * 8192 + 4096), 1);
  }
  Limits limits{kGiB};
  auto now = scan(*find(from_, "/"), limits);
  ASSERT_TRUE(now) << now.error().message();
  const auto packed = pack(changes({}, *now), kGiB);
  ASSERT_TRUE(packed) << packed.error().message();
  const auto applied = apply_pack(*find(to_, "/"), packed->get(), limits);
  ASSERT_TRUE(applied) << applied.error().message();
  expect_same();
}

TEST_F(ContainersFiles, OverlayWithAttributesOfUsersIsCarried) {
  start(",userxattr");
  source_->run("rm -r usr etc/passwd; mkdir usr; echo > usr/x; chmod 600 big; ln big more");
  set("usr", "user.x", "y");
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  source_->run("rm -r usr data; mkdir usr data; echo > data/x; echo > etc/passwd");
  expect_carried();
}

TEST_F(ContainersFiles, SocketIsLeftOutAndNothingElseHasItsName) {
  start();
  source_->run("echo > socket; echo > new");
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  source_->run("rm socket hard1 new");
  for (const char* const name : {"socket", "hard1", "other"}) {
    const UniqueFd bound(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{AF_UNIX, {}};
    at_source(name).string().copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(bound.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  const auto packed = write_pack(*find(from_, "/"), next_changes(), memory_file().get(), kMiB);
  ASSERT_TRUE(packed) << packed.error().message();
  EXPECT_THAT(packed->notes.list(), testing::SizeIs(3));
  EXPECT_THAT(packed->notes.list(), Contains(HasSubstr("the socket /hard1")));
  ASSERT_TRUE(carry());
  for (const char* const name : {"socket", "hard1", "other", "new"}) {
    EXPECT_FALSE(fs::exists(fs::symlink_status(at_destination(name)))) << name;
    if (std::string_view(name) != "new") fs::remove(at_source(name));
  }
  expect_carried();
}

TEST_F(ContainersFiles, NothingIsSentAgainOnceTimesAreOld) {
  start(",redirect_dir=on");
  source_->run("echo > new; mv usr opt; mkdir dir; ln new dir/new");
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  EXPECT_TRUE(gcr::test::wait_until([&] {
    if (next_changes().empty()) return true;
    EXPECT_TRUE(carry());
    return false;
  }));
  source_->run("echo >> opt/lib/one");
  const Changes changes = next_changes();
  std::vector<std::string> sent;
  for (const auto& [path, change] : changes) sent.push_back(path);
  // Overlayfs makes opt/lib in the upper directory only now.
  EXPECT_THAT(sent, ElementsAre("opt", "opt/lib", "opt/lib/one"));
  expect_carried();
}

TEST_F(ContainersFiles, ChangesWithinOneTickOfTheClockAreCarried) {
  start();
  for (char byte = 'a'; byte <= 'z'; ++byte) {
    std::ofstream(at_source("new")) << byte;
    ASSERT_TRUE(carry());
    std::ofstream(at_source("new")) << static_cast<char>(byte + 'A' - 'a');
    ASSERT_TRUE(carry());
    ASSERT_EQ(read(at_destination("new")), read(at_source("new")));
  }
}

TEST_F(ContainersFiles, WritesThroughAMappingAreCarriedIfItIsNamed) {
  start();
  source_->run("echo 1234 > etc/passwd");
  const UniqueFd file(::open(at_source("etc/passwd").c_str(), O_RDWR));
  void* const address = ::mmap(nullptr, 4, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(address, MAP_FAILED);
  std::memcpy(address, "5678", 4);
  const KnownFiles mapped{{procfs::id_of(file)}, {}};
  ASSERT_TRUE(gcr::test::wait_until([&] { return carry() && next_changes().empty(); }));
  std::memcpy(address, "9abc", 4);
  EXPECT_THAT(next_changes(mapped), testing::SizeIs(1));
  ASSERT_TRUE(carry(mapped));
  ::munmap(address, 4);
  EXPECT_EQ(read(at_destination("etc/passwd")), "9abc\n");
}

TEST_F(ContainersFiles, NothingHasTheNamesOfFilesThatAreCarriedByOtherMeans) {
  start();
  source_->run("echo a > mine; echo b > other; ln mine second; echo > etc/passwd");
  const procfs::FileId mine = procfs::id_of(at_source("mine").string());
  const procfs::FileId of_image = procfs::id_of(at_source("etc/passwd").string());
  ASSERT_NO_FATAL_FAILURE(expect_carried()) << "before it was known";
  ASSERT_TRUE(carry({{}, {mine, of_image}}));
  for (const char* const name : {"mine", "second", "etc/passwd"}) {
    EXPECT_FALSE(fs::exists(at_destination(name))) << name;
  }
  EXPECT_TRUE(fs::exists(at_destination("other")));
  expect_carried();
}

TEST_F(ContainersFiles, FileThatChangesWhileItIsPackedIsSentAgain) {
  start();
  constexpr std::size_t kBytes = 4 << 20;
  for (const char* const name : {"a-shrinks", "b-grows", "c-is-removed", "d-is-another"}) {
    std::ofstream(at_source(name)) << std::string(kBytes, 'x');
  }
  auto now = scan(*find(from_, "/"), kLimits);
  ASSERT_TRUE(now) << now.error().message();
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  Result<Packed> packed = Error(Code::kInternal, "not done");
  std::thread writer([&, to = UniqueFd(pipe[1])] {
    packed = write_pack(*find(from_, "/"), changes({}, *now), to.get(), 64 * kMiB);
  });
  const UniqueFd from(pipe[0]);
  const UniqueFd file = memory_file();
  // The writer is in the first file now.
  std::string bytes(kBytes / 2, '\0');
  std::size_t taken = 0;
  for (ssize_t count = 0; taken < bytes.size(); taken += static_cast<std::size_t>(count)) {
    count = ::read(from.get(), bytes.data() + taken, bytes.size() - taken);
    ASSERT_GT(count, 0);
  }
  fs::resize_file(at_source("a-shrinks"), 100);
  std::ofstream(at_source("b-grows"), std::ios::app) << "more";
  source_->run("rm c-is-removed; rm d-is-another; mkdir d-is-another");
  for (ssize_t count = static_cast<ssize_t>(taken); count > 0;
       count = ::read(from.get(), bytes.data(), bytes.size())) {
    ASSERT_EQ(::write(file.get(), bytes.data(), static_cast<std::size_t>(count)), count);
  }
  writer.join();
  ASSERT_TRUE(packed) << packed.error().message();
  ::lseek(file.get(), 0, SEEK_SET);
  const auto applied = apply_pack(*find(to_, "/"), file.get(), kLimits);
  ASSERT_TRUE(applied) << applied.error().message();
  EXPECT_EQ(fs::file_size(at_destination("a-shrinks")), kBytes);
  EXPECT_EQ(read(at_destination("a-shrinks")).back(), '\0');
  EXPECT_EQ(fs::file_size(at_destination("b-grows")), kBytes + 4);
  EXPECT_FALSE(fs::exists(at_destination("c-is-removed")));
  before_ = std::move(*now);
  expect_carried();
}

TEST_F(ContainersFiles, LayerBeyondTheLimitIsRefused) {
  start();
  std::ofstream(at_source("large")) << std::string(3 << 20, 'x');
  source_->run("truncate -s 1G hole; ln large large2; echo >> big");
  EXPECT_TRUE(scan(*find(from_, "/"), {4 * kMiB}));
  const auto beyond = scan(*find(from_, "/"), {2 * kMiB});
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(beyond.error().message(), HasSubstr("2 MiB"));
  EXPECT_EQ(scan(*find(from_, "/"), {kGiB, 3}).error().code(), Code::kResourceExhausted);
  EXPECT_EQ(pack(next_changes(), 2 * kMiB).error().code(), Code::kResourceExhausted);
  const auto file = pack(next_changes());
  ASSERT_TRUE(file);
  EXPECT_EQ(apply_pack(*find(to_, "/"), file->get(), {2 * kMiB}).error().code(),
            Code::kResourceExhausted);
}

TEST_F(ContainersFiles, PackThatCannotBeWrittenOrReadSaysWhy) {
  start();
  source_->run("echo > new");
  const UniqueFd full(::open("/dev/full", O_WRONLY));
  const auto packed = write_pack(*find(from_, "/"), next_changes(), full.get(), kMiB);
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().code(), Code::kResourceExhausted) << packed.error().message();
  EXPECT_EQ(apply_pack(*find(to_, "/"), full.get(), kLimits).error().code(), Code::kIo);
}

TEST_F(ContainersFiles, ContentOfTheImageInARenamedDirectoryCounts) {
  start(",redirect_dir=on,metacopy=on");
  source_->run("mkdir dir; mv usr dir/usr; chmod 600 big");
  const auto found = scan(*find(from_, "/"), kLimits);
  ASSERT_TRUE(found);
  EXPECT_GT(found->bytes, fs::file_size(at_source("big")));
  EXPECT_EQ(scan(*find(from_, "/"), {100 * kKiB}).error().code(), Code::kResourceExhausted);
  EXPECT_EQ(content_bytes(changes({}, *found)), found->bytes);
}

}  // namespace
}  // namespace gcr::layer::test
