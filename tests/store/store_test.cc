// Checkpoints that are written, found again, and share equal content.
#include <thread>

#include "tests/store/support.h"

namespace gcr::store::test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

std::span<const std::byte, kDigestBytes> digest(const std::string& text) {
  return std::as_bytes(std::span(text)).first<kDigestBytes>();
}

TEST_F(Store, CheckpointHasWhatWasWritten) {
  const Chunks chunks{noise(1), noise(2), noise(3)};
  const proto::Manifest manifest = take("first", chunks);
  EXPECT_EQ(manifest.agent(), "node1");
  EXPECT_EQ(manifest.new_bytes(), 3 * kChunkBytes);
  EXPECT_EQ(manifest.images(0).size_bytes(), 3 * kChunkBytes);
  expect_has("first", chunks);
  expect_nothing_left_over();
  EXPECT_EQ(find_manifest(directory(), "", tls_)->name(), "first");
}

TEST_F(Store, CompressedContentSurvivesARoundTrip) {
  for (const auto codec : {store::Codec::kLz4, store::Codec::kZstd}) {
    const std::string name = "with-" + std::string(store::to_string(codec));
    Writer::Options wanted = options(name);
    wanted.codec = codec;
    const auto writing = Writer::create(directory(), wanted).value();
    const Chunks chunks{Bytes(kChunkBytes, std::byte(static_cast<int>(codec))), noise(9)};
    const proto::Manifest manifest = describe(*writing, chunks).value();
    ASSERT_TRUE(writing->seal(manifest));
    ASSERT_TRUE(writing->publish());
    expect_has(name, chunks);
    EXPECT_LT(writing->new_bytes(), 2 * kChunkBytes);
  }
}

TEST_F(Store, ContentOfAnEarlierCheckpointIsReused) {
  take("first", {noise(1), noise(2)});
  const std::uint64_t before = pack_bytes();
  const proto::Manifest second = take("second", {noise(2), noise(1), noise(3)});
  EXPECT_EQ(second.new_bytes(), kChunkBytes);
  EXPECT_LT(pack_bytes() - before, kChunkBytes + kChunkBytes / 2);
  expect_has("first", {noise(1), noise(2)});
  expect_has("second", {noise(2), noise(1), noise(3)});
}

TEST_F(Store, EqualContentIsWrittenOnce) {
  const auto writing = writer("first");
  const ContentRef one = writing->add(noise(1)).value();
  EXPECT_EQ(writing->add(noise(1)).value(), one);
  EXPECT_EQ(writing->new_bytes(), kChunkBytes);
  EXPECT_EQ(writing->shared_bytes(), kChunkBytes);
}

TEST_F(Store, ConcurrentEqualContentIsWrittenOnce) {
  const auto writing = writer("first");
  std::vector<std::vector<ContentRef>> refs(8);
  std::vector<std::thread> threads;
  for (auto& own : refs) {
    threads.emplace_back([&writing, &own] {
      for (std::uint64_t i = 0; i < 32; ++i) own.push_back(writing->add(noise(i, 65'536)).value());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(writing->new_bytes(), 32 * 65'536u);
  EXPECT_EQ(writing->shared_bytes(), 7 * 32 * 65'536u);
  for (const auto& own : refs) EXPECT_EQ(own, refs.front());
}

TEST_F(Store, SpaceOfDroppedContentIsReused) {
  Writer::Options wanted = options("first");
  wanted.packs = 1;
  const auto writing = Writer::create(directory(), wanted).value();
  for (std::uint64_t i = 0; i < 50; ++i) writing->drop(writing->add(noise(i)).value());
  EXPECT_EQ(writing->new_bytes(), 0u);
  const Chunks chunks{noise(100), noise(101)};
  const proto::Manifest manifest = describe(*writing, chunks).value();
  ASSERT_TRUE(writing->seal(manifest));
  ASSERT_TRUE(writing->publish());
  expect_has("first", chunks);
  EXPECT_LT(pack_bytes(), 2 * kChunkBytes + 64 * kKiB);
}

TEST_F(Store, NumberOfPacksFollowsTheSize) {
  const auto packs_of = [this](const std::string& name, std::uint64_t chunks) {
    const auto before = directory().list("packs").value().size();
    Writer::Options wanted = options(name);
    wanted.packs = 3;
    const auto writing = Writer::create(directory(), wanted).value();
    Chunks all;
    for (std::uint64_t i = 0; i < chunks; ++i) all.push_back(noise(before * 1'000 + i));
    const proto::Manifest manifest = describe(*writing, all).value();
    EXPECT_TRUE(writing->seal(manifest));
    EXPECT_TRUE(writing->publish());
    expect_has(name, all);
    return directory().list("packs").value().size() - before;
  };
  EXPECT_EQ(packs_of("little", 10), 1u);
  EXPECT_EQ(packs_of("more", 40), 2u);
  EXPECT_EQ(packs_of("much", 100), 3u);
}

TEST_F(Store, ContentStaysUntilItsLastUseIsDropped) {
  const auto writing = writer("first");
  writing->drop(writing->add(noise(1)).value());
  const ContentRef content = writing->add(noise(1)).value();
  writing->add(noise(1)).value();
  writing->drop(content);
  const proto::Manifest manifest = describe(*writing, {noise(2), noise(1)}).value();
  ASSERT_TRUE(writing->seal(manifest));
  ASSERT_TRUE(writing->publish());
  expect_has("first", {noise(2), noise(1)});
}

TEST_F(Store, ConcurrentAddsAndDropsLoseNothing) {
  const auto writing = writer("first");
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&writing, thread] {
      for (std::uint64_t i = 0; i < 200; ++i) {
        writing->drop(writing->add(noise((i + thread) % 5, 4096)).value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(writing->new_bytes(), 0u);
  EXPECT_EQ(writing->shared_bytes(), 0u);
  const proto::Manifest manifest = describe(*writing, {noise(1), noise(2)}).value();
  ASSERT_TRUE(writing->seal(manifest));
  ASSERT_TRUE(writing->publish());
  expect_has("first", {noise(1), noise(2)});
}

TEST_F(Store, EarlierChunkIsFoundByItsDigest) {
  const proto::Manifest first = take("first", {noise(1), noise(2)});
  const auto writing = writer("second");
  EXPECT_EQ(key_of(first.digest_key()), writing->digest_key());
  const std::string known = digest_of(noise(2));
  const std::string unknown = digest_of(noise(3));
  const auto found = writing->find_chunk(digest(known), kChunkBytes);
  ASSERT_TRUE(found);
  EXPECT_FALSE(writing->find_chunk(digest(known), kChunkBytes - 1));
  EXPECT_FALSE(writing->find_chunk(digest(unknown), kChunkBytes));
  EXPECT_EQ(writing->add(noise(2)).value(), *found);
  EXPECT_EQ(writing->new_bytes(), 0u);
  EXPECT_EQ(writing->shared_bytes(), 2 * kChunkBytes);
}

TEST_F(Store, ContentNamesDifferBetweenStores) {
  const proto::Manifest here = take("first", {noise(1)});
  path_ = folder_.path() / "another";
  const proto::Manifest there = take("first", {noise(1)});
  EXPECT_NE(here.content_names(), there.content_names());
  EXPECT_NE(here.digest_key(), there.digest_key());
}

TEST_F(Store, OnlyOneWritesAtATime) {
  const auto writing = writer("first");
  const auto second = Writer::create(directory(), options("second"));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kRefused);
  EXPECT_THAT(second.error().message(), HasSubstr("another checkpoint is being written"));
  const auto pruned = prune(directory(), 1, tls_);
  ASSERT_FALSE(pruned);
  EXPECT_EQ(pruned.error().code(), Code::kRefused);
}

TEST_F(Store, NameCanBeUsedOnce) {
  take("first", {noise(1)});
  const auto again = Writer::create(directory(), options("first"));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), Code::kRefused);
  const auto bad = Writer::create(directory(), options("../first"));
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Code::kInvalidArgument);
}

TEST_F(Store, ContentHasOneByteToTwoMebibytes) {
  const auto writing = writer("first");
  EXPECT_FALSE(writing->add({}));
  EXPECT_FALSE(writing->add(noise(1, kMaxContentBytes + 1)));
  EXPECT_TRUE(writing->add(noise(1, kMaxContentBytes)));
  EXPECT_TRUE(writing->add(noise(1, 1)));
}

TEST_F(Store, SealedCheckpointCanBePublishedByAnother) {
  const auto wanted = options("first");
  {
    const auto writing = Writer::create(directory(), wanted).value();
    const proto::Manifest manifest = describe(*writing, {noise(1)}).value();
    ASSERT_TRUE(writing->seal(manifest));
  }
  EXPECT_THAT(directory().names().value(), SizeIs(0));
  EXPECT_EQ(find_manifest(directory(), "", tls_).error().code(), Code::kNotFound);
  take("second", {noise(2)});  // whose writer leaves it alone
  ASSERT_TRUE(prune(directory(), 1, tls_));
  ASSERT_TRUE(publish(directory(), wanted.checkpoint, "first"));
  ASSERT_TRUE(publish(directory(), wanted.checkpoint, "first"));
  ASSERT_TRUE(discard(directory(), wanted.checkpoint, "first"));  // too late
  expect_has("first", {noise(1)});
  expect_nothing_left_over();
}

TEST_F(Store, DiscardedCheckpointDoesNotExist) {
  const auto wanted = options("first");
  const auto writing = Writer::create(directory(), wanted).value();
  const proto::Manifest manifest = describe(*writing, {noise(1)}).value();
  ASSERT_TRUE(writing->seal(manifest));
  ASSERT_TRUE(discard(directory(), wanted.checkpoint, "first"));
  ASSERT_TRUE(discard(directory(), wanted.checkpoint, "first"));
  EXPECT_EQ(publish(directory(), wanted.checkpoint, "first").error().code(), Code::kNotFound);
  EXPECT_THAT(packs(), SizeIs(0));
  expect_nothing_left_over();
}

TEST_F(Store, ExistingCheckpointIsNotReplaced) {
  const auto wanted = options("first");
  {
    const auto writing = Writer::create(directory(), wanted).value();
    const proto::Manifest manifest = describe(*writing, {noise(1)}).value();
    ASSERT_TRUE(writing->seal(manifest));
  }
  take("first", {noise(2)});
  EXPECT_EQ(publish(directory(), wanted.checkpoint, "first").error().code(), Code::kRefused);
  ASSERT_TRUE(discard(directory(), wanted.checkpoint, "first"));
  EXPECT_EQ(publish(directory(), wanted.checkpoint, "first").error().code(), Code::kNotFound);
  expect_has("first", {noise(2)});
  expect_nothing_left_over();
}

TEST_F(Store, DanglingReferenceIsNotSealed) {
  const auto writing = writer("first");
  proto::Manifest manifest = describe(*writing, {noise(1)}).value();
  manifest.mutable_vram(0)->set_contents(0, 77);
  EXPECT_EQ(writing->seal(manifest).error().code(), Code::kInternal);
}

TEST_F(Store, ZerosNeedNoContent) {
  const auto writing = writer("first");
  proto::Manifest manifest = describe(*writing, {noise(1), noise(2)}).value();
  manifest.mutable_vram(0)->set_contents(0, 0);
  ASSERT_TRUE(writing->seal(manifest));
  ASSERT_TRUE(writing->publish());
  EXPECT_EQ(read("first").vram(0).contents(0), 0u);
  EXPECT_NE(read("first").vram(0).contents(1), 0u);
}

TEST_F(Store, NewestIsFoundByItsTime) {
  take("b", {noise(1)});
  take("a", {noise(2)});
  EXPECT_EQ(find_manifest(directory(), "", tls_)->name(), "a");
  EXPECT_EQ(find_manifest(directory(), "b", tls_)->name(), "b");
  EXPECT_EQ(find_manifest(directory(), "c", tls_).error().code(), Code::kNotFound);
  EXPECT_EQ(find_manifest(directory(), "../a", tls_).error().code(), Code::kInvalidArgument);
  write_file(manifest_file("a"), {});
  EXPECT_EQ(find_manifest(directory(), "", tls_)->name(), "b");
}

}  // namespace
}  // namespace gcr::store::test
