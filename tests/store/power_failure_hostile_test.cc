// Disks that lose unsynced data, at every change: complete checkpoints are whole afterwards,
// incomplete ones do not exist, and upkeep removes the rest of them.
#include "tests/store/on_test_disk.h"

namespace gcr::store::test {
namespace {

using gcr::test::Loss;
using testing::Contains;
using testing::Not;

class PowerFailure : public OnTestDisk, public testing::WithParamInterface<Loss> {
 protected:
  bool exists(const std::string& name) const {
    const auto names = directory().names().value();
    return std::ranges::count(names, name) != 0;
  }

  /// Every checkpoint that is listed can be restored.
  void expect_all_whole() const {
    const auto listed = list(directory(), tls_).value();
    for (const Listed& one : listed) {
      ASSERT_FALSE(one.problem) << one.name << ": " << one.problem->message();
      const auto verified = verify(directory(), one.manifest);
      EXPECT_TRUE(verified) << one.name << ": " << verified.error().message();
    }
  }

  /// Takes "old" and "kept", and removes "old" until the power fails at that change; false if the
  /// prune has ended before.
  bool power_fails_in_a_prune(unsigned at) {
    take("old", {noise(10), noise(11), noise(12), noise(13), noise(14)});
    take("kept", {noise(10), noise(20)});
    const Directory opened = directory();
    disk_.cut_power_at(at);
    (void)prune(opened, 1, tls_);
    return disk_.is_off();
  }

  void prune_now(unsigned keep) const {
    const auto done = prune(directory(), keep, tls_);
    ASSERT_TRUE(done) << done.error().message();
  }
};

TEST_P(PowerFailure, FirstCheckpointIsCompleteOrAbsent) {
  for (unsigned at = 0;; ++at) {
    disk_.cut_power_at(at);
    const Uuid checkpoint = Uuid::random();
    const Status complete = write("first", {noise(1), noise(2)}, checkpoint);
    const bool was_cut = disk_.is_off();
    disk_.restart(GetParam(), at);
    if (complete) {
      ASSERT_TRUE(exists("first")) << "at change " << at;
    }
    if (exists("first")) expect_has("first", {noise(1), noise(2)});
    ASSERT_TRUE(discard(directory(), checkpoint, "first"));
    expect_nothing_left_over();
    if (HasFailure()) FAIL() << "at change " << at;
    if (!was_cut) break;
    std::filesystem::remove_all(path_);
    disk_.restart(Loss::kBytes);
  }
}

TEST_P(PowerFailure, CompleteCheckpointsStayWhole) {
  take("earlier", {noise(1), noise(2)});
  for (unsigned at = 0;; ++at) {
    disk_.cut_power_at(at);
    const Uuid checkpoint = Uuid::random();
    const Status complete = write("later", {noise(2), noise(3), noise(4)}, checkpoint);
    const bool was_cut = disk_.is_off();
    disk_.restart(GetParam(), at);
    ASSERT_TRUE(!complete || exists("later")) << "at change " << at;
    expect_has("earlier", {noise(1), noise(2)});
    if (exists("later")) expect_has("later", {noise(2), noise(3), noise(4)});
    ASSERT_TRUE(discard(directory(), checkpoint, "later"));
    expect_all_whole();
    expect_nothing_left_over();
    if (HasFailure()) FAIL() << "at change " << at;
    if (!was_cut) break;
    std::filesystem::remove(manifest_file("later"));
    prune_now(0);
  }
}

TEST_P(PowerFailure, SealedCheckpointCanBePublishedLater) {
  take("earlier", {noise(1), noise(2)});
  for (unsigned at = 0;; ++at) {
    disk_.cut_power_at(at);
    const Uuid checkpoint = Uuid::random();
    (void)write("later", {noise(2), noise(3)}, checkpoint);
    const bool was_cut = disk_.is_off();
    disk_.restart(GetParam(), at);
    const Status published = publish(directory(), checkpoint, "later");
    if (published) {
      expect_has("later", {noise(2), noise(3)});
      disk_.restart(Loss::kAll);
      expect_has("later", {noise(2), noise(3)});
      std::filesystem::remove(manifest_file("later"));
    } else {
      EXPECT_EQ(published.error().code(), Code::kNotFound) << published.error().message();
      EXPECT_TRUE(was_cut);
    }
    if (HasFailure()) FAIL() << "at change " << at;
    if (!was_cut) break;
    prune_now(0);
  }
}

TEST_P(PowerFailure, DiscardedCheckpointNeverReappearsBroken) {
  for (unsigned at = 0;; ++at) {
    const auto wanted = options("later");
    {
      const auto writing = Writer::create(directory(), wanted).value();
      ASSERT_TRUE(writing->seal(describe(*writing, {noise(2), noise(3)}).value()));
    }
    const Directory opened = directory();
    disk_.cut_power_at(at);
    const Status discarded = discard(opened, wanted.checkpoint, "later");
    const bool was_cut = disk_.is_off();
    disk_.restart(GetParam(), at);
    if (publish(directory(), wanted.checkpoint, "later")) {
      EXPECT_FALSE(discarded);
      expect_has("later", {noise(2), noise(3)});
      std::filesystem::remove(manifest_file("later"));
    }
    ASSERT_TRUE(discard(directory(), wanted.checkpoint, "later"));
    expect_nothing_left_over();
    if (HasFailure()) FAIL() << "at change " << at;
    if (!was_cut) break;
  }
}

TEST_P(PowerFailure, PruneLeavesCheckpointsWhole) {
  for (unsigned at = 0;; ++at) {
    const bool was_cut = power_fails_in_a_prune(at);
    disk_.restart(GetParam(), at);
    expect_has("kept", {noise(10), noise(20)});
    expect_all_whole();
    prune_now(1);
    EXPECT_THAT(directory().names().value(), Not(Contains("old")));
    expect_has("kept", {noise(10), noise(20)});
    expect_nothing_left_over();
    if (HasFailure()) FAIL() << "at change " << at;
    if (!was_cut) break;
    std::filesystem::remove_all(path_);
  }
}

/// The output of the dead process can be read, but is not on the disk.
TEST_P(PowerFailure, OutputOfADeadPruneIsSyncedBeforeUse) {
  for (unsigned at = 0;; ++at) {
    const bool was_cut = power_fails_in_a_prune(at);
    disk_.restart(Loss::kNothing);
    if (at % 2 == 0) {
      prune_now(1);
    } else {
      take("next", {noise(10), noise(30)});
    }
    disk_.restart(GetParam(), at);
    expect_has("kept", {noise(10), noise(20)});
    expect_all_whole();
    if (HasFailure()) FAIL() << "at change " << at;
    if (!was_cut) break;
    std::filesystem::remove_all(path_);
  }
}

INSTANTIATE_TEST_SUITE_P(, PowerFailure,
                         testing::Values(Loss::kAll, Loss::kNames, Loss::kBytes, Loss::kSome),
                         [](const auto& info) {
                           switch (info.param) {
                             case Loss::kAll:
                               return "LosesAll";
                             case Loss::kNames:
                               return "LosesNames";
                             case Loss::kBytes:
                               return "LosesBytes";
                             default:
                               return "LosesSome";
                           }
                         });

}  // namespace
}  // namespace gcr::store::test
