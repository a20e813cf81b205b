// Directories on a network file system, and on disks that return wrong data.
#include <sys/stat.h>

#include <cerrno>
#include <future>

#include "tests/store/on_test_disk.h"

namespace gcr::store::test {
namespace {

using gcr::test::Mount;
using gcr::test::Nature;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr Owner kOtherUser{4711, 4711};

class NetworkDisk : public OnTestDisk {
 protected:
  NetworkDisk() : OnTestDisk(kOtherUser) {}

  void SetUp() override {
    OnTestDisk::SetUp();
    if (IsSkipped()) return;
    ::chmod(folder_.path().c_str(), 0711);
    mount(nature_);
  }

  void remove(const std::filesystem::path& file) const {
    const auto as = AsOwner::take(owner_);
    EXPECT_TRUE(std::filesystem::remove(file));
  }

  /// Writes, reads and prunes, and leaves no other file.
  void expect_works() {
    take("first", {noise(1), noise(2), noise(3), noise(4)});
    EXPECT_EQ(take("second", {noise(2), noise(5)}).new_bytes(), kChunkBytes);
    expect_has("first", {noise(1), noise(2), noise(3), noise(4)});
    expect_has("second", {noise(2), noise(5)});
    ASSERT_TRUE(prune(directory(), 1, tls_));
    expect_has("second", {noise(2), noise(5)});
    EXPECT_THAT(directory().names().value(), Not(Contains("first")));
    expect_nothing_left_over();
  }

  /// The files of packs/, as names on the disk.
  std::vector<std::string> packs_on_disk() const {
    std::vector<std::string> names = directory().list("packs").value();
    for (std::string& name : names) name = "store/packs/" + name;
    return names;
  }

  Nature nature_{.is_network = true, .squashes_root = true};
};

TEST_F(NetworkDisk, RootSquashAllowsUserCheckpoints) {
  expect_works();
  EXPECT_EQ(Directory::open(path_, Owner{}).error().code(), Code::kPermissionDenied);
}

TEST_F(NetworkDisk, ShortReadsAndWritesAreContinued) {
  nature_.most_bytes = 30'011;
  mount(nature_);
  expect_works();
}

TEST_F(NetworkDisk, WithoutLinksNoCheckpointIsReplaced) {
  nature_.has_links = false;
  mount(nature_);
  expect_works();
  const auto wanted = options("third");
  {
    const auto writing = Writer::create(directory(), wanted).value();
    ASSERT_TRUE(writing->seal(describe(*writing, {noise(1)}).value()));
  }
  take("third", {noise(2)});
  EXPECT_EQ(publish(directory(), wanted.checkpoint, "third").error().code(), Code::kRefused);
  expect_has("third", {noise(2)});
}

TEST_F(NetworkDisk, DirectoryWithoutLocksIsRefused) {
  nature_.has_locks = false;
  mount(nature_);
  const auto writing = Writer::create(directory(), options("first"));
  ASSERT_FALSE(writing);
  EXPECT_EQ(writing.error().code(), Code::kUnsupported);
  EXPECT_THAT(writing.error().message(), HasSubstr("name a directory on a file system with flock"));
}

TEST_F(NetworkDisk, ErrorOfTheSyncFailsTheWriter) {
  take("earlier", {noise(1), noise(2)});
  for (const int error : {EIO, ENOSPC, EDQUOT}) {
    for (unsigned at = 0;; ++at) {
      const Uuid checkpoint = Uuid::random();
      disk_.fail_sync_at(at, error);
      const Status written = write("later", {noise(2), noise(3), noise(4)}, checkpoint);
      disk_.restart(gcr::test::Loss::kNothing);
      expect_has("earlier", {noise(1), noise(2)});
      if (written) {
        EXPECT_GE(at, 3u);
        expect_has("later", {noise(2), noise(3), noise(4)});
        remove(manifest_file("later"));
      } else {
        EXPECT_EQ(written.error().code(), error == EIO ? Code::kIo : Code::kResourceExhausted);
        EXPECT_THAT(written.error().message(),
                    AllOf(HasSubstr(path_.native()), HasSubstr("cannot write")));
        ASSERT_TRUE(discard(directory(), checkpoint, "later"));
        EXPECT_THAT(directory().names().value(), Not(Contains("later")));
        expect_nothing_left_over();
      }
      ASSERT_TRUE(prune(directory(), 0, tls_));
      if (HasFailure()) FAIL() << "errno " << error << " at sync " << at;
      if (written) break;
    }
  }
}

class TwoClients : public NetworkDisk {
 protected:
  void SetUp() override {
    NetworkDisk::SetUp();
    if (!IsSkipped()) other_.emplace(disk_, folder_.path() / "other", nature_);
  }

  Directory directory_there() const {
    return Directory::open(other_->path() / "store", owner_).value();
  }

  std::optional<Mount> other_;
};

TEST_F(TwoClients, CheckpointOfOneCanBeRestoredByTheOther) {
  for (const char* name : {"first", "second"}) {
    const proto::Manifest manifest = take(name, {noise(1), noise(2)});
    const auto found = find_manifest(directory_there(), "", tls_);
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(found->name(), name);
    EXPECT_TRUE(verify(directory_there(), *found));
  }
}

TEST_F(TwoClients, OnlyOneWritesAtATime) {
  const auto writing = writer("first");
  const auto refused = Writer::create(directory_there(), options("second"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
}

TEST_F(TwoClients, OnlyOneOfTwoRestoresGetsACheckpoint) {
  directory();
  const Directory there = directory_there();
  for (int i = 0; i < 20; ++i) {
    const std::string name = "n" + std::to_string(i);
    take(name, {noise(1)});
    auto other =
        std::async(std::launch::async, [&] { return begin_restore(there, name, Uuid::random()); });
    const Status here = begin_restore(directory(), name, Uuid::random());
    EXPECT_NE(here.has_value(), other.get().has_value());
    const auto entries = directory().list("").value();
    EXPECT_EQ(std::ranges::count_if(
                  entries, [](const auto& entry) { return entry.ends_with(".restoring"); }),
              i + 1);
  }
}

TEST_F(NetworkDisk, InterruptedRenameByLinkIsFinished) {
  take("first", {noise(1)});
  const Uuid restore = Uuid::random();
  {
    const auto as = AsOwner::take(owner_);
    std::filesystem::create_hard_link(manifest_file("first"), path_ / restoring_file_of(restore));
  }
  const Status given_back = cancel_restore(directory(), "first", restore);
  EXPECT_TRUE(given_back) << given_back.error().message();
  expect_has("first", {noise(1)});
  expect_nothing_left_over();
}

TEST_F(TwoClients, ConcurrentRemovalIsReported) {
  const proto::Manifest manifest = take("first", {noise(1)});
  const auto opened = Packs::open(directory_there()).value();
  remove(manifest_file("first"));
  ASSERT_TRUE(prune(directory(), 0, tls_));
  Bytes content(kChunkBytes);
  const Status read =
      opened->read(key_of(manifest.content_key()), content_name(manifest, 0), content);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), Code::kIo);
  EXPECT_THAT(read.error().message(), HasSubstr("another host has removed the file meanwhile"));
}

TEST_F(NetworkDisk, WronglyReadBitIsFound) {
  const proto::Manifest manifest = take("first", {noise(1), noise(2), noise(3)});
  disk_.flip_bit(packs_on_disk().front(), kPackHeaderBytes + 12'345);
  const auto verified = verify(directory(), manifest);
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code(), Code::kDataLoss);
  EXPECT_THAT(verified.error().message(), HasSubstr("do not match their content's name"));
}

TEST_F(NetworkDisk, TruncatedFileIsFound) {
  const proto::Manifest manifest = take("first", {noise(1), noise(2), noise(3)});
  const Directory opened = directory();
  const auto packs = Packs::open(opened).value();
  disk_.end_reads_at("store/" + packs->packs().front().file_name, kPackHeaderBytes + 12'345);
  Bytes content(kChunkBytes);
  const IndexEntry& entry = packs->packs().front().index.front();
  const Status read = packs->read(key_of(manifest.content_key()), entry.name, content);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), Code::kDataLoss);
  const auto listed = list(opened, tls_).value();
  ASSERT_TRUE(listed.front().problem);
  EXPECT_THAT(listed.front().problem->message(), HasSubstr("contents of first are missing"));
}

TEST_F(NetworkDisk, WronglyReadManifestIsRefused) {
  take("first", {noise(1)});
  disk_.flip_bit("store/first.checkpoint", 800);
  const auto manifest = read_manifest(directory(), "first.checkpoint", tls_);
  ASSERT_FALSE(manifest);
  EXPECT_THAT(manifest.error().message(), HasSubstr("cannot be used"));
  EXPECT_EQ(prune(directory(), 1, tls_).error().code(), Code::kRefused);
}

/// Otherwise its packs would be removed, as of one that was never published.
TEST_F(NetworkDisk, UnreadableCheckpointIsNotDiscarded) {
  const Uuid checkpoint = Uuid::random();
  ASSERT_TRUE(write("first", {noise(1)}, checkpoint));
  disk_.fail_reads("store/first.checkpoint", EIO);
  EXPECT_EQ(discard(directory(), checkpoint, "first").error().code(), Code::kIo);
  EXPECT_EQ(publish(directory(), checkpoint, "first").error().code(), Code::kIo);
  disk_.fail_reads("store/first.checkpoint", 0);
  expect_has("first", {noise(1)});
  EXPECT_TRUE(publish(directory(), checkpoint, "first"));
}

}  // namespace
}  // namespace gcr::store::test
