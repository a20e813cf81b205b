// Listing, verifying and pruning.
#include "store/survey.h"
#include "tests/store/support.h"

namespace gcr::store::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class Upkeep : public Store {
 protected:
  Pruned pruned(unsigned keep) {
    auto done = prune(directory(), keep, tls_);
    EXPECT_TRUE(done) << done.error().message();
    return done ? *done : Pruned{};
  }
};

TEST_F(Upkeep, ListIsOrderedByTimeWithProblemsLast) {
  take("c", {noise(1)});
  take("b", {noise(2)});
  take("a", {noise(3)});
  write_file(manifest_file("c"), noise(1, 100));
  const auto listed = list(directory(), tls_).value();
  ASSERT_THAT(listed, SizeIs(3));
  EXPECT_EQ(listed[0].name, "b");
  EXPECT_EQ(listed[0].manifest.name(), "b");
  EXPECT_EQ(listed[1].name, "a");
  EXPECT_EQ(listed[2].name, "c");
  ASSERT_TRUE(listed[2].problem);
  EXPECT_EQ(listed[2].problem->code(), Code::kDataLoss);
}

TEST_F(Upkeep, EmptyDirectoryHasNothing) {
  EXPECT_THAT(list(directory(), tls_).value(), IsEmpty());
  EXPECT_THAT(pruned(1).removed, IsEmpty());
}

TEST_F(Upkeep, VerifyReportsWhatItRead) {
  const auto verified = verify(directory(), take("a", {noise(1), noise(2), noise(1)}));
  ASSERT_TRUE(verified);
  EXPECT_EQ(verified->contents, 2u);
  EXPECT_EQ(verified->bytes, 2 * kChunkBytes);
}

TEST_F(Upkeep, PruneKeepsTheNewestOfEachJob) {
  take("a", {noise(1)});
  take("b", {noise(2)});
  take("other", {noise(3)}, "serve");
  take("c", {noise(4)});
  EXPECT_THAT(pruned(2).removed, ElementsAre("a"));
  EXPECT_THAT(pruned(0).removed, IsEmpty());
  EXPECT_THAT(pruned(1).removed, ElementsAre("b"));
  expect_has("c", {noise(4)});
  expect_has("other", {noise(3)});
  expect_nothing_left_over();
  EXPECT_LT(pack_bytes(), 2 * kChunkBytes + 64 * kKiB);
}

TEST_F(Upkeep, OnlyTheNamedJobIsPruned) {
  take("a", {noise(1)});
  take("b", {noise(2)}, "serve");
  take("c", {noise(3)}, "serve");
  const proto::Manifest newest = take("d", {noise(4)});
  const auto lock = directory().lock();
  const auto done = prune_job(directory(), 1, newest, tls_);
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_THAT(done->removed, ElementsAre("a"));
  EXPECT_THAT(directory().names().value(), SizeIs(3));
}

TEST_F(Upkeep, ContentOfOtherCheckpointsStays) {
  take("a", {noise(1), noise(2)});
  take("b", {noise(2), noise(1)});
  EXPECT_THAT(pruned(1).removed, ElementsAre("a"));
  expect_has("b", {noise(2), noise(1)});
}

TEST_F(Upkeep, SparsePackIsRewritten) {
  take("a", {noise(1), noise(2), noise(3), noise(4), noise(5), noise(6), noise(7), noise(8)});
  take("b", {noise(3), noise(9)});
  const std::uint64_t before = pack_bytes();
  const Pruned done = pruned(1);
  EXPECT_THAT(done.removed, ElementsAre("a"));
  expect_has("b", {noise(3), noise(9)});
  expect_nothing_left_over();
  EXPECT_LT(pack_bytes(), 2 * kChunkBytes + 64 * kKiB);
  EXPECT_NEAR(static_cast<double>(done.freed_bytes), static_cast<double>(before - pack_bytes()),
              64.0 * kKiB);
  EXPECT_EQ(pruned(1).freed_bytes, 0u);
  const proto::Manifest next = take("c", {noise(3), noise(9)});
  EXPECT_EQ(next.new_bytes(), 0u);
}

TEST_F(Upkeep, DamagedPackIsNotRewritten) {
  take("a", {noise(1), noise(2), noise(3), noise(4), noise(5), noise(6)});
  take("b", {noise(1)});
  for (const auto& pack : packs()) {  // all contents of it
    Bytes bytes = read_file(pack);
    for (std::size_t at = kPackHeaderBytes; at < bytes.size() - kChunkBytes / 2; at += 4096) {
      bytes[at] ^= std::byte{1};
    }
    write_file(pack, bytes);
  }
  pruned(1);
  EXPECT_THAT(packs(), SizeIs(1));
  EXPECT_EQ(verify(directory(), read("b")).error().code(), Code::kDataLoss);
}

TEST_F(Upkeep, OldPackStaysUnlessItsRewriteIsGood) {
  take("a", {noise(1), noise(2), noise(3), noise(4), noise(5), noise(6)});
  take("b", {noise(1)});
  std::filesystem::remove(manifest_file("a"));
  // As if killed between the two, and then the disk has lost the new one's bytes.
  const Needs needs = Needs::of(directory(), tls_).value();
  std::filesystem::copy(path_ / "packs", folder_.path() / "before");
  ASSERT_TRUE(remove_unneeded(directory(), needs, true));
  ASSERT_THAT(packs(), SizeIs(1));
  const auto anew = packs().front();
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "before")) {
    std::filesystem::copy(entry.path(), path_ / "packs" / entry.path().filename());
  }
  Bytes bytes = read_file(anew);
  bytes[kPackHeaderBytes] ^= std::byte{1};
  write_file(anew, bytes);
  pruned(1);
  expect_has("b", {noise(1)});
}

TEST_F(Upkeep, InvalidCheckpointPreventsPruning) {
  take("a", {noise(1)});
  take("b", {noise(2)});
  take("c", {noise(3)});
  const Bytes good = read_file(manifest_file("a"));
  write_file(manifest_file("a"), noise(1, 100));
  const auto done = prune(directory(), 1, tls_);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), Code::kRefused);
  EXPECT_THAT(done.error().message(), HasSubstr("a.checkpoint"));
  take("d", {noise(4)});  // nor does a writer remove anything
  write_file(manifest_file("a"), good);
  for (const auto& [name, seed] : {std::pair("a", 1), {"b", 2}, {"c", 3}, {"d", 4}}) {
    expect_has(name, {noise(static_cast<std::uint64_t>(seed))});
  }
}

TEST_F(Upkeep, InvalidCheckpointCanBeRemovedByName) {
  take("a", {noise(1)});
  take("b", {noise(2)});
  const proto::Manifest manifest = take("old", {noise(3)});
  ASSERT_TRUE(directory().remove("old.checkpoint"));
  ASSERT_TRUE(write_manifest(directory(), "old.checkpoint", manifest,
                             credentials_.issue({.common_name = "node1", .expired = true})));
  ASSERT_FALSE(prune(directory(), 1, tls_));
  EXPECT_EQ(remove(directory(), {"old", "nowhere"}).error().code(), Code::kNotFound);
  EXPECT_EQ(remove(directory(), {"../store/old"}).error().code(), Code::kNotFound);
  EXPECT_TRUE(directory().exists("old.checkpoint"));
  ASSERT_TRUE(remove(directory(), {"old"}));
  EXPECT_THAT(pruned(1).removed, ElementsAre("a"));
  expect_has("b", {noise(2)});
  expect_nothing_left_over();
}

using Restoring = Upkeep;

TEST_F(Restoring, OnlyOneRestoreGetsTheCheckpoint) {
  take("a", {noise(1)});
  const Uuid first = Uuid::random();
  ASSERT_TRUE(begin_restore(directory(), "a", first));
  EXPECT_EQ(begin_restore(directory(), "a", Uuid::random()).error().code(), Code::kNotFound);
  EXPECT_THAT(directory().names().value(), IsEmpty());
  EXPECT_EQ(find_manifest(directory(), "a", tls_).error().code(), Code::kNotFound);
  const auto listed = list(directory(), tls_).value();
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed[0].name, "a");
  EXPECT_EQ(listed[0].restore, first);
  EXPECT_FALSE(listed[0].problem);
}

TEST_F(Restoring, ReleasedCheckpointIsAvailableAgain) {
  take("a", {noise(1)});
  const Uuid restore = Uuid::random();
  EXPECT_EQ(cancel_restore(directory(), "a", restore).error().code(), Code::kNotFound);
  ASSERT_TRUE(begin_restore(directory(), "a", restore));
  ASSERT_TRUE(cancel_restore(directory(), "a", restore));
  expect_has("a", {noise(1)});
}

TEST_F(Restoring, PruneAndWriteKeepACheckpointInUse) {
  take("a", {noise(1)});
  const Uuid restore = Uuid::random();
  ASSERT_TRUE(begin_restore(directory(), "a", restore));
  take("b", {noise(2)});
  take("c", {noise(3)});
  EXPECT_THAT(pruned(1).removed, ElementsAre("b"));
  ASSERT_TRUE(cancel_restore(directory(), "a", restore));
  expect_has("a", {noise(1)});
}

TEST_F(Restoring, OnlyTheRestoredCheckpointIsRemoved) {
  take("a", {noise(1), noise(2)});
  take("b", {noise(2), noise(3)});
  const Uuid restore = Uuid::random();
  ASSERT_TRUE(begin_restore(directory(), "a", restore));
  ASSERT_TRUE(end_restore(directory(), restore, tls_));
  ASSERT_TRUE(end_restore(directory(), restore, tls_));  // as recovery may
  EXPECT_THAT(directory().names().value(), ElementsAre("b"));
  expect_has("b", {noise(2), noise(3)});
  expect_nothing_left_over();
}

TEST_F(Restoring, EmptyDirectoryIsRemovedToo) {
  take("a", {noise(1)});
  const Uuid restore = Uuid::random();
  ASSERT_TRUE(begin_restore(directory(), "a", restore));
  const Directory opened = directory();
  write_file(path_ / "notes", noise(1, 10));
  ASSERT_TRUE(end_restore(opened, restore, tls_));
  EXPECT_TRUE(std::filesystem::exists(path_ / "notes"));
  std::filesystem::remove(path_ / "notes");
  ASSERT_TRUE(end_restore(opened, restore, tls_));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(Restoring, OtherSpellingOfTheFileIsNoRestore) {
  const Uuid restore = Uuid::parse("abcdef00-0000-0000-0000-000000000000").value();
  const std::string file = restoring_file_of(restore);
  EXPECT_EQ(restore_of(file), restore);
  EXPECT_FALSE(restore_of("GPU-" + file));
  EXPECT_FALSE(restore_of("A" + file.substr(1)));
}

TEST_F(Upkeep, OtherFilesStay) {
  take("a", {noise(1)});
  for (const char* name : {"thesis.new", ".new", "packs/thesis.pack", "packs/thesis.new"}) {
    write_file(path_ / name, noise(2, 10));
  }
  ASSERT_TRUE(prune(Directory::open(path_, owner_).value(), 0, tls_));
  for (const char* name : {"thesis.new", ".new", "packs/thesis.pack", "packs/thesis.new"}) {
    EXPECT_TRUE(std::filesystem::exists(path_ / name)) << name;
  }
}

TEST_F(Upkeep, LeftoversOfADeadWriterAreRemoved) {
  take("a", {noise(1)});
  // As a writer leaves them where a file has a name from the beginning.
  const auto leave_pack = [this] {
    write_file(path_ / pack_file_of(Uuid::random(), 0), noise(2, 10'000));
  };
  leave_pack();
  write_file(path_ / "x.checkpoint.new", noise(1, 10));
  EXPECT_THAT(packs(), SizeIs(testing::Gt(1u)));
  pruned(0);
  expect_nothing_left_over();
  leave_pack();
  take("c", {noise(3)});  // the next writer does the same
  expect_nothing_left_over();
}

}  // namespace
}  // namespace gcr::store::test
