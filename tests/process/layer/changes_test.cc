// Every kind of change, in the first round and in the second, with the options of overlayfs that
// engines use.
#include "tests/process/layer/fixture.h"

namespace gcr::layer::test {
namespace {

struct Case {
  const char* name;
  const char* before;  ///< what the first of two rounds takes
  const char* change;
};

std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

constexpr Case kCases[] = {
    {"NewFile", "true", "echo new > etc/new"},
    {"FileChangedInPlace", "true", "printf X 1<> etc/passwd"},
    {"FileTruncated", "true", "truncate -s 10 big; : > etc/hosts"},
    {"FileAppendedTo", "echo a > new", "echo b >> new; echo c >> etc/passwd"},
    {"FileReplaced", "echo a > new", "echo b > .t; mv .t new; echo c > .t; mv .t etc/passwd"},
    {"Permissions", "echo a > new", "chmod 4711 usr/bin/tool; chmod 600 new; chmod 2770 usr/lib"},
    {"RootsPermissions", "true", "chmod 711 ."},
    {"Owner", "echo a > new", "chown 1000:1001 etc/passwd new usr; chown -h 7:8 link"},
    {"SetuidOfUser", "true", "chown 1000:1001 usr/bin/tool; chmod 6755 usr/bin/tool"},
    {"Times", "true",
     "touch -d '2001-02-03 04:05:06.789012345' etc/passwd usr; touch -d 1950-01-01 big;"
     "touch -h -d '1999-09-09 09:09:09.5' link"},
    {"NewLinks", "true",
     "ln -s nowhere dangling; ln -s /etc/passwd absolute; ln -s ../../.. usr/up; ln -s . self"},
    {"LinkChanged", "ln -s a new", "ln -sfn /b new; ln -sfn other link"},
    {"HardLinks", "true", "ln etc/passwd etc/again; echo a > x; ln x y; ln x usr/z; ln link l2"},
    {"HardLinkAdded", "echo a > x", "ln x usr/x; ln x b"},
    {"FirstHardLinkRemoved", "echo a > x; ln x y; ln x z", "rm x"},
    {"LastHardLinkRemoved", "echo a > x; ln x y; ln x z", "rm z"},
    {"HardLinkWrittenTo", "echo a > x; ln x y; ln x z", "echo b >> y"},
    {"HardLinkReplaced", "echo a > x; ln x y; ln x z", "rm y; echo b > y"},
    {"HardLinksExchanged", "echo a > a; echo b > b; ln a a2; ln b b2", "mv a c; mv b a; mv c b"},
    {"FileRemoved", "echo a > new; echo b > more", "rm etc/passwd new hard1"},
    {"FileRemovedAndMadeAgain", "rm etc/passwd", "echo a > etc/passwd"},
    {"DirectoryRemoved", "mkdir new; echo > new/x", "rm -r usr new"},
    {"DirectoryRemovedAndMadeAgain", "rm -r usr", "mkdir usr; echo > usr/x"},
    {"DirectoryReplacedByFile", "mkdir new; echo > new/x", "rm -r usr new; echo > usr; echo > new"},
    {"DirectoryReplacedByLink", "mkdir new; echo > new/x",
     "rm -r usr new; ln -s etc usr; ln -s . new"},
    {"DirectoryReplacedByDirectory", "mkdir new; echo > new/x; echo > new/y",
     "rm -r usr new; mkdir usr new; echo a > usr/x; echo > new/x"},
    {"DirectoryBelowReplaced", "true", "rm -r usr/lib; mkdir usr/lib; echo a > usr/lib/one"},
    {"FileReplacedByDirectory", "echo > new",
     "rm etc/passwd new; mkdir etc/passwd new; echo > new/x"},
    {"LinkReplacedByDirectory", "ln -s usr new",
     "rm link new; mkdir link new; echo > new/x; echo > link/x"},
    {"FileRenamed", "echo > new", "mv etc/passwd etc/shadow; mv big usr/big; mv new newer"},
    {"DirectoryRenamed", "true", "mv usr opt"},
    {"DirectoryRenamedBack", "mv usr opt", "mv opt usr"},
    {"DirectoryRenamedTwice", "mv usr opt",
     "mv opt srv; echo a >> srv/lib/one; rm srv/lib/two; mkdir srv/new"},
    {"DirectoryRenamedIntoAnother", "mkdir new", "mv usr/lib new/lib; mv usr etc/usr"},
    {"DirectoryRenamedOverAnother", "mkdir new; echo > new/x", "rm -r etc; mv usr etc; mkdir usr"},
    {"RenamedDirectoryChanged", "mv usr opt",
     "rm opt/lib/one; echo > opt/lib/three; mv opt/lib opt/lib2; rm -r opt/bin; mkdir opt/bin"},
    {"RenamedDirectoryRemoved", "mv usr opt", "rm -r opt"},
    {"FileInRenamedDirectoryTouched", "mv usr opt", "chmod 600 opt/lib/deep/deeper/file"},
    {"NewDirectoriesRenamed", "mkdir -p a/b/c d; echo 1 > a/b/c/x; echo 2 > d/y",
     "mv a e; mv d a; mv e d"},
    {"NewDirectoriesRemoved", "mkdir -p a/b/c d; echo 1 > a/b/c/x; echo 2 > d/y", "rm -r a/b d"},
    {"NewDirectoryMadeAgain", "mkdir a; echo 1 > a/x; echo 2 > a/y",
     "rm -r a; mkdir a; echo 1 > a/x"},
    {"SparseFile", "truncate -s 1G s; printf a | dd of=s bs=1 seek=500M conv=notrunc status=none",
     "truncate -s 1G hole; printf b | dd of=s bs=1 seek=900M conv=notrunc status=none;"
     "truncate -s 1000M s; printf c | dd of=end bs=1 seek=300M status=none;"
     "printf d > begin; truncate -s 200M begin; truncate -s 30M big"},
    {"Fifo", "mkfifo a", "mkfifo -m 620 p; chown 3:4 p; rm a; mkfifo etc/a; ln p q"},
    {"AllowedDevices", "mknod null c 1 3",
     "chmod 666 null; mknod zero c 1 5; mknod full c 1 7; mknod random c 1 8; mknod urandom c 1 9;"
     "mknod tty c 5 0; mknod ptmx c 5 2; chown 5:6 tty"},
    {"StrangeNames", "echo > $'a\\nb'",
     "echo x > $'new\\nline'; echo x > $'\\xff\\xfe'; echo x > ' blank '; echo x > -r; mkdir '*';"
     "echo x > '*/\\'; ln $'\\xff\\xfe' $'\\xc3\\xa4'; ln -s $'\\xfe' l; rm $'a\\nb'; echo > %41=;"
     "echo > wh.x; echo > .whx; echo > x.wh.; echo > .gcr-0000000000000000"},
    {"LongNames", "true",
     "n=$(printf 'n%.0s' {1..255}); echo > $n; mkdir -p etc/$n/$n; echo > etc/$n/$n/x; mv $n "
     "usr/$n;"
     "rm -r usr/lib; mkdir $n; echo > $n/y"},
    {"LongNamesRemoved",
     "n=$(printf 'n%.0s' {1..255}); echo > $n; mkdir -p etc/$n/$n; echo > etc/$n/x",
     "n=$(printf 'n%.0s' {1..255}); rm -r $n etc/$n/$n etc/$n/x"},
    {"ManyFiles", "mkdir m; for i in {1..300}; do echo $i > m/$i; done",
     "rm m/1*; for i in {2..300..7}; do echo > m/$i; done; cp -r m usr/m"},
    {"Nothing", "echo > new", "true"},
};

class EveryChange : public TwoContainers, public testing::WithParamInterface<Case> {
 protected:
  void expect_carried_in_round(bool second, const std::string& overlay) {
    SCOPED_TRACE((second ? "second round" : "first round") + overlay);
    start(overlay);
    source_->run(GetParam().before);
    if (second) expect_carried();
    source_->run(GetParam().change);
    expect_carried();
    expect_carried();  // what was in flight is sent again
  }
};

TEST_P(EveryChange, IsSameAtTheDestination) {
  for (const char* const overlay : {"", ",redirect_dir=on,metacopy=on,index=on"}) {
    for (const bool second : {false, true}) expect_carried_in_round(second, overlay);
  }
}

INSTANTIATE_TEST_SUITE_P(Layer, EveryChange, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_F(TwoContainers, ListingsShowEveryDifference) {
  start();
  for (const char* const change :
       {"echo > new", "rm big", "printf X 1<> big", "chmod 4755 usr/bin/tool", "chown 1 data",
        "touch -d 2001-01-01 usr", "ln -sfn x link", "ln etc/passwd etc/more",
        "truncate -s 5 etc/hosts"}) {
    source_->run(change);
    EXPECT_THAT(differences(listing_of(source_->root()), listing_of(destination_->root())),
                testing::Not(testing::IsEmpty()))
        << change;
    ASSERT_NO_FATAL_FAILURE(expect_carried()) << change;
  }
}

TEST_F(TwoContainers, HardLinkOfTheImageIsBrokenWhenItIsWrittenTo) {
  start();
  source_->run("echo more >> hard2; ln usr/lib/two usr/lib/third");
  ASSERT_NO_FATAL_FAILURE(expect_carried());
  source_->run("echo more >> hard1; echo more >> usr/lib/third; rm usr/lib/second");
  expect_carried();
}

TEST_F(TwoContainers, HardLinkOfTheImageThatOverlayfsKeepsIsRefused) {
  start(",index=on");
  source_->run("echo more >> hard2");
  const auto now = scan(*find(from_, "/"), kLimits);
  ASSERT_FALSE(now);
  EXPECT_EQ(now.error().code(), Code::kUnsupported);
  EXPECT_THAT(now.error().message(), testing::HasSubstr("/hard2"));
  source_->run("echo more >> hard1");
  expect_carried();
}

}  // namespace
}  // namespace gcr::layer::test
