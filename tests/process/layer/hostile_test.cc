// Packs that no agent would send, and containers that lead elsewhere: nothing outside of the tree
// is changed.
#include <archive_entry.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/process/layer/fixture.h"
#include "tests/process/layer/pack_builder.h"

namespace gcr::layer::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class HostilePack : public TwoContainers {
 protected:
  HostilePack() {
    fs::create_directory(outside_);
    std::ofstream(outside_ / "precious") << "mine";
    ContainerOptions options;
    options.mount = [this](const fs::path& root) {
      bind_at(root / "data", outside_);
      bind_at(root / "etc/hosts", outside_ / "precious");
    };
    start(options, options);
    destination_->run("ln -s " + outside_.string() + " out; ln -s usr inside; ln -s ../data up");
  }

  ~HostilePack() override { expect_nothing_outside_is_changed(); }

  Status apply(const UniqueFd& file, const Limits& limits = kLimits) const {
    const auto applied = apply_pack(*find(to_, "/"), file.get(), limits);
    return applied ? Status() : applied.error();
  }

  void expect_refused(PackBuilder& pack, Code code = Code::kProtocol) const {
    const Status applied = apply(pack.take());
    ASSERT_FALSE(applied);
    EXPECT_EQ(applied.error().code(), code) << applied.error().message();
  }

  void expect_nothing_outside_is_changed() const {
    std::string content;
    std::ifstream(outside_ / "precious") >> content;
    EXPECT_EQ(content, "mine");
    struct stat status {};
    EXPECT_EQ(::stat((outside_ / "precious").c_str(), &status), 0);
    EXPECT_EQ(status.st_nlink, 1u);
    EXPECT_EQ(std::distance(fs::directory_iterator(outside_), {}), 1);
    EXPECT_TRUE(fs::exists(destination_->root() / "data/precious"));
    for (const auto& found : fs::recursive_directory_iterator(destination_->upper())) {
      EXPECT_FALSE(found.path().filename().string().starts_with(".gcr-")) << found;
    }
  }

  const fs::path outside_ = machine_.path() / "outside";
};

TEST_F(HostilePack, PathsThatLeadElsewhereAreRefused) {
  const std::string name(256, 'n');
  for (const std::string& path :
       {std::string("../x"), std::string("usr/../../x"), std::string("/etc/x"), std::string(".."),
        std::string("usr/./x"), std::string("usr//x"), std::string("/"), std::string("usr/.."),
        name, "usr/" + name, std::string("./x"), std::string("../")}) {
    SCOPED_TRACE(path);
    PackBuilder pack;
    expect_refused(pack.file(path));
  }
}

TEST_F(HostilePack, PathThatIsTooLongIsRefused) {
  std::string path = "p";
  while (path.size() < PATH_MAX) path += "/p";
  PackBuilder pack;
  expect_refused(pack.file(path));
}

TEST_F(HostilePack, MarkersThatLeadElsewhereAreRefused) {
  for (const char* const path :
       {".wh.", ".wh..", ".wh...", "usr/.wh...", "../.wh.x", "../.wh..wh..opq", "/.wh..wh..opq",
        ".wh..wh.plnk", "usr/.wh..wh.x", ".wh.usr/x", "usr/../.wh.x"}) {
    SCOPED_TRACE(path);
    PackBuilder pack;
    expect_refused(pack.marker(path));
  }
  EXPECT_TRUE(fs::exists(destination_->root() / "usr/lib/one"));
}

TEST_F(HostilePack, MarkerWithContentIsRefused) {
  PackBuilder pack;
  expect_refused(pack.file("usr/.wh.bin"));
}

TEST_F(HostilePack, LinkInPlaceOfADirectoryIsNotFollowed) {
  for (const char* const path :
       {"out/x", "inside/x", "up/x", "usr/lib/deep/link/x", "out/.wh.precious", "out/.wh..wh..opq",
        "inside/.wh.lib", "inside/.wh..wh..opq"}) {
    SCOPED_TRACE(path);
    PackBuilder pack;
    EXPECT_FALSE(apply(pack.marker(path).take()));
  }
  EXPECT_TRUE(fs::exists(destination_->root() / "usr/lib/one"));
}

TEST_F(HostilePack, LinkThatThePackMakesIsNotFollowed) {
  PackBuilder through;
  EXPECT_FALSE(apply(through.symlink("l", outside_).file("l/x").take()));
  PackBuilder replaced;
  EXPECT_FALSE(apply(replaced.directory("d").symlink("d", outside_).file("d/x").take()));
  PackBuilder written;
  EXPECT_TRUE(apply(written.symlink("w", outside_ / "precious").file("w").take()));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(destination_->root() / "w")));
}

TEST_F(HostilePack, HardLinksOutOfTheTreeAreRefused) {
  for (const char* const target :
       {"../outside/precious", "/etc/passwd", "data/precious", "out/precious", "etc/hosts", "usr",
        "missing", ".", "usr/../etc/passwd"}) {
    SCOPED_TRACE(target);
    PackBuilder pack;
    EXPECT_FALSE(apply(pack.link("l", target).take()));
  }
  PackBuilder inside;
  EXPECT_TRUE(apply(inside.link("l", "etc/passwd").link("l", "l").take()));
}

TEST_F(HostilePack, MountPointsStay) {
  PackBuilder pack;
  const Status applied = apply(pack.file("data/x")
                                   .file("data")
                                   .file("etc/hosts")
                                   .marker("data/.wh.precious")
                                   .marker("data/.wh..wh..opq")
                                   .marker(".wh.data")
                                   .marker("etc/.wh.hosts")
                                   .marker(".wh..wh..opq")
                                   .link("data/l", "link")
                                   .take());
  EXPECT_TRUE(applied) << applied.error().message();
}

TEST_F(HostilePack, AttributesOfTheKernelAreRefused) {
  for (const char* const name : {"trusted.overlay.redirect", "trusted.x", "security.selinux",
                                 "system.x", "security.ima", "user"}) {
    SCOPED_TRACE(name);
    PackBuilder pack;
    const Status applied = apply(pack.add("x", S_IFREG | 0644, "",
                                          [&](archive_entry* entry) {
                                            ::archive_entry_xattr_add_entry(entry, name, "opq", 3);
                                          })
                                     .take());
    EXPECT_FALSE(applied);
  }
}

TEST_F(HostilePack, DevicesThatNotEveryContainerHasAreRefusedByName) {
  const auto device = [](unsigned major, unsigned minor) {
    return [=](archive_entry* entry) { ::archive_entry_set_rdev(entry, makedev(major, minor)); };
  };
  for (const mode_t type : {S_IFBLK, S_IFCHR}) {
    PackBuilder pack;
    const Status applied = apply(pack.add("disk", type | 0666, "", device(8, 1)).take());
    ASSERT_FALSE(applied);
    EXPECT_THAT(applied.error().message(), testing::AllOf(HasSubstr("/disk"), HasSubstr("8:1")));
  }
  PackBuilder whiteout;
  EXPECT_FALSE(apply(whiteout.add("w", S_IFCHR | 0666, "", device(0, 0)).take()));
  PackBuilder block;
  EXPECT_FALSE(apply(block.add("null", S_IFBLK | 0666, "", device(1, 3)).take()));
  PackBuilder null;
  EXPECT_TRUE(apply(null.add("null", S_IFCHR | 0666, "", device(1, 3)).take()));
}

TEST_F(HostilePack, OwnersAndSizesOutOfRangeAreRefused) {
  for (const la_int64_t id : {la_int64_t{0xffffffff}, la_int64_t{1} << 32}) {
    SCOPED_TRACE(id);
    PackBuilder pack;
    expect_refused(pack.add("x", S_IFREG | 0644, "",
                            [&](archive_entry* entry) { ::archive_entry_set_uid(entry, id); }));
  }
  EXPECT_FALSE(apply(file_with(header("x", '0', 1ull << 62))));
  EXPECT_FALSE(apply(file_with(header("x", '0', ~0ull))));
  EXPECT_FALSE(apply(file_with(header("x", '0', 1ull << 40) + std::string(4096, 'x'))));
}

TEST_F(HostilePack, RootThatIsAFileIsRefused) {
  PackBuilder pack;
  expect_refused(pack.file("."));
  PackBuilder link;
  EXPECT_FALSE(apply(link.link(".", "etc/passwd").take()));
}

TEST_F(HostilePack, DirectoryThatIsMissingIsRefused) {
  PackBuilder pack;
  EXPECT_FALSE(apply(pack.file("no/such/file").take()));
  PackBuilder file;
  EXPECT_FALSE(apply(file.file("etc/passwd/x").take()));
}

TEST_F(HostilePack, TruncatedPackIsRefusedWhereverItEnds) {
  PackBuilder builder;
  const UniqueFd whole = builder.directory("d").file("d/x").file("y").take();
  struct stat status {};
  ASSERT_EQ(::fstat(whole.get(), &status), 0);
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  ASSERT_EQ(::pread(whole.get(), bytes.data(), bytes.size(), 0), status.st_size);
  EXPECT_TRUE(apply(file_with(bytes)));
  for (std::size_t length = 0; length < bytes.size(); length += 256) {
    EXPECT_FALSE(apply(file_with(bytes.substr(0, length)))) << length;
  }
  EXPECT_FALSE(apply(file_with(bytes.substr(0, bytes.size() - 1))));
}

TEST_F(HostilePack, PackOfAWriterThatFailedIsRefused) {
  source_->run("echo > new; seq 100000 > zlarge");
  const UniqueFd file = memory_file();
  ASSERT_FALSE(write_pack(*find(from_, "/"), next_changes(), file.get(), 100 * kKiB));
  ::lseek(file.get(), 0, SEEK_SET);
  const Status applied = apply(file);
  ASSERT_FALSE(applied);
  EXPECT_EQ(applied.error().code(), Code::kProtocol) << applied.error().message();
}

TEST_F(HostilePack, OtherBytesAreRefused) {
  EXPECT_FALSE(apply(file_with("")));
  EXPECT_FALSE(apply(file_with("\x1f\x8b\x08 not a tar archive")));
  EXPECT_FALSE(apply(file_with(std::string(100'000, 'x'))));
  EXPECT_TRUE(apply(file_with(std::string(1024, '\0')))) << "an empty pack";
}

TEST_F(HostilePack, EntriesBeyondTheLimitAreRefused) {
  PackBuilder pack;
  for (int i = 0; i < 20; ++i) pack.file("x");
  const UniqueFd file = pack.take();
  EXPECT_EQ(apply(file, {kMiB, 10}).error().code(), Code::kResourceExhausted);
  ::lseek(file.get(), 0, SEEK_SET);
  EXPECT_TRUE(apply(file, {kMiB, 20}));
}

TEST_F(HostilePack, ContentOfWhatIsLeftOutCountsToo) {
  PackBuilder pack;
  pack.add("data/x", S_IFREG | 0644, std::string(2 << 20, 'x'));
  EXPECT_EQ(apply(pack.take(), {kMiB}).error().code(), Code::kResourceExhausted);
}

/// Feeds endless bytes to apply_pack(); returns how many it took before it refused.
std::size_t taken_of(const Tree& tree, const std::string& begin, const std::string& endless) {
  int pipe[2];
  EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  std::size_t taken = 0;
  std::thread writer([&, to = UniqueFd(pipe[1])] {
    sigset_t broken_pipe;
    ::sigemptyset(&broken_pipe);
    ::sigaddset(&broken_pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    (void)!::write(to.get(), begin.data(), begin.size());
    for (ssize_t count = 0; (count = ::write(to.get(), endless.data(), endless.size())) > 0;) {
      taken += static_cast<std::size_t>(count);
    }
  });
  UniqueFd from(pipe[0]);
  EXPECT_FALSE(apply_pack(tree, from.get(), {kMiB}));
  from.reset();
  writer.join();
  return taken;
}

TEST_F(HostilePack, EndlessHeadersAndMapsAreRefusedEarly) {
  const Tree& tree = *find(to_, "/");
  constexpr std::size_t kEnough = 6 << 20;
  const std::string zeros(65536, '\0');
  EXPECT_LT(taken_of(tree, header("pax", 'x', 1ull << 40), zeros), kEnough);
  EXPECT_LT(taken_of(tree, header("pax", 'g', 1ull << 40), zeros), kEnough);
  EXPECT_LT(taken_of(tree, header("name", 'L', 1ull << 40), zeros), kEnough);
  EXPECT_LT(taken_of(tree, "", pax({"comment=" + std::string(60'000, 'x')})), kEnough);
  // An endless list of extents, which libarchive keeps in memory.
  std::string list;
  while (list.size() < zeros.size()) list += "1\n";
  const std::string sparse = pax({"GNU.sparse.major=1", "GNU.sparse.minor=0"});
  EXPECT_LT(taken_of(tree, sparse + header("x", '0', 1ull << 40), "1000000000\n" + list), kEnough);
  EXPECT_LT(taken_of(tree, header("x", '1', 1ull << 40), zeros), kEnough) << "a link with content";
  EXPECT_LT(taken_of(tree, header("d", '5', 1ull << 40), zeros), kEnough);
  EXPECT_LT(taken_of(tree, header("x", '0', 1ull << 40), zeros), kEnough) << "more than the limit";
  EXPECT_LT(taken_of(tree, std::string(1024, '\0'), zeros), kEnough) << "behind the end";
}

TEST_F(HostilePack, ExtentsOutOfTheFileAreNotWritten) {
  for (const char* const list :
       {"1\n100\n10\n", "1\n9223372036854775800\n10\n", "1\n-5\n10\n", "2\n5\n3\n0\n3\n"}) {
    SCOPED_TRACE(list);
    std::string map = list;
    map.resize(512);
    const auto applied = apply(file_with(pax({"GNU.sparse.major=1", "GNU.sparse.minor=0",
                                              "GNU.sparse.name=x", "GNU.sparse.realsize=20"}) +
                                         header("x", '0', 522) + map + std::string(512, 'y') +
                                         std::string(1024, '\0')));
    const fs::path made = destination_->root() / "x";
    EXPECT_TRUE(!applied || fs::file_size(made) == 20);
  }
}

}  // namespace
}  // namespace gcr::layer::test
