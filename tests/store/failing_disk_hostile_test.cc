// Writers and prunes that are killed, or whose disk fails, at every single call: existing
// checkpoints are whole afterwards, and nothing is left over after the next clean-up.
#include "tests/store/failing_disk.h"
#include "tests/store/support.h"

namespace gcr::store::test {
namespace {

using testing::Contains;
using testing::Not;

const Chunks& earlier() {
  static const Chunks chunks{noise(1), noise(2)};
  return chunks;
}
const Chunks& later() {
  static const Chunks chunks{noise(2), noise(3), noise(4)};
  return chunks;
}

class FailingDisk : public Store, public testing::WithParamInterface<Fault> {
 protected:
  void SetUp() override { take("earlier", earlier()); }

  /// In a child. True if the writer reports the checkpoint as complete.
  bool write_later(const Uuid& checkpoint) const {
    Writer::Options wanted = options("later");
    wanted.checkpoint = checkpoint;
    wanted.packs = 1;  // so that calls have one order
    auto made = Directory::create(path_, this_user());
    if (!made) return false;
    const auto writing = Writer::create(*std::move(made), wanted);
    if (!writing) return false;
    const auto manifest = describe(**writing, later());
    return manifest && (*writing)->seal(*manifest) && (*writing)->publish();
  }

  bool exists(const std::string& name) const {
    return std::ranges::count(directory().names().value(), name) != 0;
  }

  /// Back to the state after SetUp.
  void reset() const {
    std::filesystem::remove(manifest_file("later"));
    const auto done = prune(directory(), 0, tls_);
    ASSERT_TRUE(done) << done.error().message();
  }
};

TEST_P(FailingDisk, FailedWriteLeavesEarlierCheckpointsWhole) {
  for (int at = 0;; ++at) {
    const Uuid checkpoint = Uuid::random();
    const Ended ended = run_with_fault(at, GetParam(), [&] { return write_later(checkpoint); });
    ASSERT_TRUE(!ended.succeeded || exists("later")) << "at call " << at;
    expect_has("earlier", earlier());
    if (exists("later")) expect_has("later", later());
    const Status discarded = discard(directory(), checkpoint, "later");
    ASSERT_TRUE(discarded) << discarded.error().message();
    if (exists("later")) expect_has("later", later());
    expect_nothing_left_over();
    if (HasFailure()) FAIL() << "at call " << at;
    if (ended.calls <= at) break;
    reset();
  }
}

TEST_P(FailingDisk, SealedCheckpointCanBeFinishedByAnother) {
  for (int at = 0;; ++at) {
    const Uuid checkpoint = Uuid::random();
    const Ended ended = run_with_fault(at, GetParam(), [&] { return write_later(checkpoint); });
    const Status published = publish(directory(), checkpoint, "later");
    if (published) {
      expect_has("later", later());
    } else {
      EXPECT_EQ(published.error().code(), Code::kNotFound) << published.error().message();
      EXPECT_FALSE(ended.succeeded);
    }
    if (HasFailure()) FAIL() << "at call " << at;
    if (ended.calls <= at) break;
    reset();
  }
}

TEST_P(FailingDisk, FailedPruneLeavesKeptCheckpointsWhole) {
  for (int at = 0;; ++at) {
    take("old", {noise(10), noise(11), noise(12), noise(13), noise(14), noise(15)});
    take("kept", {noise(10), noise(20)});
    const Ended ended = run_with_fault(at, GetParam(), [&] {
      const auto opened = Directory::open(path_, this_user());
      return opened && prune(*opened, 1, tls_);
    });
    expect_has("kept", {noise(10), noise(20)});
    const auto done = prune(directory(), 1, tls_);
    ASSERT_TRUE(done) << done.error().message();
    EXPECT_THAT(directory().names().value(), Not(Contains("old")));
    expect_has("kept", {noise(10), noise(20)});
    expect_nothing_left_over();
    if (HasFailure()) FAIL() << "at call " << at;
    if (ended.calls <= at) break;
    std::filesystem::remove_all(path_);
  }
}

INSTANTIATE_TEST_SUITE_P(, FailingDisk,
                         testing::Values(Fault::kKill, Fault::kFullDisk, Fault::kIoError),
                         [](const auto& info) {
                           return info.param == Fault::kKill       ? "Killed"
                                  : info.param == Fault::kFullDisk ? "FullDisk"
                                                                   : "IoError";
                         });

}  // namespace
}  // namespace gcr::store::test
