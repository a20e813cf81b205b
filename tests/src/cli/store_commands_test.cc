// gcr-migrate checkpoints, verify and prune on real directories.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "store/upkeep.h"
#include "store/writer.h"
#include "tests/src/cli/process.h"
#include "tests/src/control/peers.h"
#include "tests/support/damage.h"

namespace gcr::cli::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr std::size_t kContentBytes = 64 * kKiB;

/// The output of verify for a valid checkpoint that this host's agent has signed.
std::string good(const std::string& name) {
  return name + ": good: 1 contents, 64 KiB; signed by \"node1\", accepted here\n";
}

class StoreCommands : public testing::Test {
 protected:
  StoreCommands() : folder_(testing::TempDir() + "/gcr-checkpoints-" + std::to_string(::getpid())) {
    fs::create_directories(folder_);
    configure("");
  }
  ~StoreCommands() override { fs::remove_all(folder_); }

  store::Directory directory() const {
    return store::Directory::create(folder_ / "store", {::geteuid(), ::getegid()}).value();
  }

  /// A checkpoint of `command` with one content full of `byte`, taken after the one before.
  void take(const std::string& name, char byte, const std::string& command = "train") {
    const store::Writer::Options options{
        .checkpoint = Uuid::random(), .name = name, .packs = 1, .tls = tls_};
    const auto writer = store::Writer::create(directory(), options).value();
    const std::vector<std::byte> content(kContentBytes, static_cast<std::byte>(byte));
    proto::Manifest manifest;
    manifest.set_taken_unix_ms(now_ms_ += 1'000);
    manifest.set_vram_bytes(1ULL << 30);
    manifest.set_memory_bytes(kContentBytes);
    manifest.mutable_job()->add_members()->set_command(command);
    proto::StoredImage& image = *manifest.add_images();
    image.set_name("pages-1.img");
    image.set_size_bytes(kContentBytes);
    proto::Extent& extent = *image.add_extents();
    extent.set_bytes(kContentBytes);
    extent.set_content(writer->add(content).value());
    ASSERT_TRUE(writer->seal(manifest));
    ASSERT_TRUE(writer->publish());
  }

  std::string configuration() const { return folder_ / "agent.toml"; }
  /// Of this host's agent, which is node1.
  void configure(const std::string& peers) const {
    std::ofstream(configuration()) << "[tls]\ncertificate = \"" << own_.certificate << "\"\n"
                                   << peers;
  }

  /// These commands get only the authority's certificate, and the list of trusted agents of this
  /// host.
  Finished run_in_store(const std::string& command, std::vector<std::string> options = {},
                        const std::string& path = "") {
    std::vector<std::string> words{command, path.empty() ? folder_ / "store" : fs::path(path),
                                   "--ca", tls_.authority};
    if (command != "prune") words.insert(words.end(), {"--config", configuration()});
    words.insert(words.end(), options.begin(), options.end());
    return run_cli(words);
  }

  /// Changes a byte of every content.
  void damage_packs() const {
    for (const auto& entry : fs::directory_iterator(folder_ / "store" / "packs")) {
      gcr::test::damage_byte(entry.path(), 4096 + 100);
    }
  }

  fs::path folder_;
  control::test::Credentials credentials_;
  const control::TlsFiles own_ = credentials_.issue({.common_name = "node1"});
  control::TlsFiles tls_ = own_;  ///< of the user who takes checkpoints
  std::int64_t now_ms_ = 1'795'600'800'000;
};

TEST_F(StoreCommands, ListHasARowPerCheckpointOldestFirst) {
  take("b", '1');
  take("a", '2', "serve --all");
  const Finished listed = run_in_store("checkpoints");
  EXPECT_EQ(listed.exit_status, 0) << listed.err;
  EXPECT_THAT(listed.out, StartsWith("name "));
  EXPECT_THAT(listed.out, HasSubstr("\nb   "));
  EXPECT_THAT(listed.out, HasSubstr("2026-11-25T10:00:01Z          1       1 GiB      64 KiB"));
  EXPECT_THAT(listed.out, EndsWith("  node1         yes       serve --all\n"));
  EXPECT_LT(listed.out.find("\nb "), listed.out.find("\na "));
}

TEST_F(StoreCommands, EmptyDirectoryIsReported) {
  directory();
  const Finished listed = run_in_store("checkpoints");
  EXPECT_EQ(listed.exit_status, 0) << listed.err;
  EXPECT_EQ(listed.out, "no checkpoints\n");
}

TEST_F(StoreCommands, RelativePathUsesTheWorkingDirectory) {
  take("a", '1');
  const std::string path = fs::relative(folder_ / "store", fs::current_path());
  ASSERT_THAT(path, Not(StartsWith("/")));
  const Finished listed = run_in_store("checkpoints", {}, path);
  EXPECT_EQ(listed.exit_status, 0) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("\na "));
}

TEST_F(StoreCommands, JsonHasEveryFieldOfTheList) {
  take("a", '1');
  const Finished listed = run_in_store("checkpoints", {"--json"});
  EXPECT_THAT(listed.out, HasSubstr("\"schema\":1"));
  for (const char* field :
       {"\"name\":\"a\"", "\"checkpoint_id\":\"", "\"taken_unix_ms\":1795600801000",
        "\"command\":\"train\"", "\"processes\":1", "\"agent\":\"node1\"", "\"stopped\":false",
        "\"vram_bytes\":1073741824", "\"memory_bytes\":65536",
        "\"new_bytes\":", "\"accepted\":\"yes\"", "\"accepted_reason\":\"\"", "\"problem\":\"\"",
        "\"restore_id\":\"\"", "\"gpus\":[]"}) {
    EXPECT_THAT(listed.out, HasSubstr(field));
  }
}

TEST_F(StoreCommands, CheckpointOfAnotherAuthorityIsUnusable) {
  take("a", '1');
  control::test::Credentials strangers;
  tls_ = strangers.issue({});
  const Finished listed = run_in_store("checkpoints");
  EXPECT_EQ(listed.exit_status, 1);
  EXPECT_THAT(listed.out, HasSubstr("  unusable: "));
  EXPECT_EQ(run_in_store("verify").exit_status, 1);
  const Finished pruned = run_in_store("prune", {"--keep", "1"});
  EXPECT_EQ(pruned.exit_status, 3) << pruned.err;
  EXPECT_TRUE(fs::exists(folder_ / "store" / "a.checkpoint"));
  EXPECT_THAT(pruned.err, HasSubstr("gcr-migrate prune --remove NAME"));
  EXPECT_EQ(run_in_store("prune", {"--remove", "b"}).exit_status, 2);
  const Finished removed = run_in_store("prune", {"--remove", "a"});
  EXPECT_EQ(removed.exit_status, 0) << removed.err;
  EXPECT_THAT(removed.out, StartsWith("removed a\nfreed "));
  EXPECT_FALSE(fs::exists(folder_ / "store" / "a.checkpoint"));
}

TEST_F(StoreCommands, ListNamesTheRestoreThatHoldsACheckpoint) {
  take("a", '1');
  const Uuid restore = Uuid::random();
  ASSERT_TRUE(store::begin_restore(directory(), "a", restore));
  const Finished listed = run_in_store("checkpoints");
  EXPECT_EQ(listed.exit_status, 0) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("\na "));
  EXPECT_THAT(listed.out, HasSubstr("restore " + restore.to_string() + " has locked it"));
  EXPECT_THAT(run_in_store("checkpoints", {"--json"}).out,
              HasSubstr("\"restore_id\":\"" + restore.to_string() + "\""));
}

TEST_F(StoreCommands, VerifyReadsAllOrTheNamedOne) {
  take("a", '1');
  take("b", '2');
  const Finished all = run_in_store("verify");
  EXPECT_EQ(all.exit_status, 0) << all.err;
  EXPECT_EQ(all.out, good("a") + good("b"));
  EXPECT_EQ(run_in_store("verify", {"b"}).out, good("b"));
}

TEST_F(StoreCommands, ListAndVerifyNameTheSigner) {
  take("own", '1');
  for (const char* name : {"node2", "node3"}) {
    tls_ = credentials_.issue({.common_name = name});
    take(name, '2');
  }
  configure("[[peers]]\nname = \"node2\"\n");
  const Finished listed = run_in_store("checkpoints");
  EXPECT_EQ(listed.exit_status, 0) << listed.err;
  for (const char* row :
       {"  node1         yes  ", "  node2         yes  ", "  node3         no  "}) {
    EXPECT_THAT(listed.out, HasSubstr(row));
  }
  const Finished verified = run_in_store("verify");
  EXPECT_EQ(verified.exit_status, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr(good("own")));
  EXPECT_THAT(verified.out, HasSubstr("signed by \"node2\", accepted here\n"));
  EXPECT_THAT(verified.out, HasSubstr("signed by \"node3\", not accepted here: "));
  EXPECT_THAT(run_in_store("verify", {"node3", "--json"}).out,
              AllOf(HasSubstr("\"agent\":\"node3\""), HasSubstr("\"accepted\":\"no\""),
                    HasSubstr("no [[peers]] table of its configuration names it")));
}

TEST_F(StoreCommands, SignerIsUnjudgedWithoutAConfiguration) {
  take("a", '1');
  fs::remove(configuration());
  EXPECT_THAT(run_in_store("checkpoints").out, HasSubstr("  node1         unknown  "));
  const Finished verified = run_in_store("verify");
  EXPECT_EQ(verified.exit_status, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("signed by \"node1\", accepted here or not: cannot read"));
}

TEST_F(StoreCommands, VerifyFindsAChangedByte) {
  take("a", '1');
  damage_packs();
  const Finished verified = run_in_store("verify");
  EXPECT_EQ(verified.exit_status, 1);
  EXPECT_THAT(verified.out, StartsWith("a: "));
  EXPECT_THAT(verified.out, Not(HasSubstr("good")));
  const Finished json = run_in_store("verify", {"a", "--json"});
  EXPECT_EQ(json.exit_status, 1);
  EXPECT_THAT(json.out, HasSubstr("\"name\":\"a\""));
  EXPECT_THAT(json.out, Not(HasSubstr("\"problem\":\"\"")));
}

TEST_F(StoreCommands, PruneKeepsTheNewestOfEachJob) {
  take("one", '1');
  take("two", '2');
  take("other", '3', "serve");
  const Finished pruned = run_in_store("prune", {"--keep", "1"});
  EXPECT_EQ(pruned.exit_status, 0) << pruned.err;
  EXPECT_THAT(pruned.out, StartsWith("removed one\nfreed "));
  EXPECT_EQ(std::ranges::count(pruned.out, '\n'), 2) << pruned.out;
  EXPECT_EQ(run_in_store("verify").out, good("two") + good("other"));
}

TEST_F(StoreCommands, PruneWithoutKeepRemovesNoCheckpoint) {
  take("one", '1');
  take("two", '2');
  const Finished pruned = run_in_store("prune", {"--json"});
  EXPECT_EQ(pruned.exit_status, 0) << pruned.err;
  EXPECT_THAT(pruned.out, HasSubstr("\"removed\":[]"));
  EXPECT_THAT(pruned.out, HasSubstr("\"freed_bytes\":0"));
}

TEST_F(StoreCommands, PruneIsRefusedDuringACheckpoint) {
  take("a", '1');
  const auto lock = directory().lock();
  ASSERT_TRUE(lock);
  const Finished pruned = run_in_store("prune", {"--keep", "1"});
  EXPECT_EQ(pruned.exit_status, 3);
  EXPECT_EQ(std::ranges::count(pruned.err, '\n'), 1) << pruned.err;
}

TEST_F(StoreCommands, MissingDirectoryIsAUsageError) {
  take("a", '1');
  for (const char* command : {"checkpoints", "verify", "prune"}) {
    const Finished nowhere = run_in_store(command, {}, folder_ / "nowhere");
    EXPECT_EQ(nowhere.exit_status, 2) << command;
    EXPECT_EQ(std::ranges::count(nowhere.err, '\n'), 1) << nowhere.err;
  }
  EXPECT_EQ(run_in_store("verify", {"b"}).exit_status, 2);
  EXPECT_EQ(run_in_store("verify", {"../a"}).exit_status, 2);
}

TEST_F(StoreCommands, MissingAuthorityIsAUsageError) {
  take("a", '1');
  tls_.authority = folder_ / "ca.crt";
  const Finished listed = run_in_store("checkpoints");
  EXPECT_EQ(listed.exit_status, 2);
  EXPECT_THAT(listed.err, HasSubstr("cannot read " + tls_.authority));
}

}  // namespace
}  // namespace gcr::cli::test
