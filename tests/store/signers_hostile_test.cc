// A directory may hold checkpoints signed by agents that this one does not trust.
#include "tests/store/support.h"

namespace gcr::store::test {
namespace {

using testing::HasSubstr;

Status refuse_node9(const std::string& agent) {
  if (agent != "node9") return {};
  return Error(Code::kPermissionDenied, "nothing of node9 is taken");
}

class Signers : public Store {
 protected:
  /// A checkpoint of that agent.
  void take_by(const char* agent, const std::string& name, const Chunks& chunks) {
    tls_ = credentials_.issue({.common_name = agent});
    take(name, chunks);
  }
};

TEST_F(Signers, NewestWithAnAcceptedSignerIsFound) {
  take_by("node2", "old", {noise(1)});
  take_by("node9", "new", {noise(2)});
  EXPECT_EQ(find_manifest(directory(), "", tls_)->name(), "new");
  EXPECT_EQ(find_manifest(directory(), "", tls_, refuse_node9)->name(), "old");
  const auto named = find_manifest(directory(), "new", tls_, refuse_node9);
  ASSERT_FALSE(named);
  EXPECT_EQ(named.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(named.error().message(),
              HasSubstr("new.checkpoint cannot be used: nothing of node9"));
}

/// The agent that chooses the keys and the digest of each chunk determines the content of later
/// checkpoints.
TEST_F(Signers, ContentOfARefusedSignerIsNotReused) {
  take_by("node9", "theirs", {noise(1)});
  const proto::Manifest theirs = read("theirs");
  Writer::Options wanted = options("ours");
  wanted.rule = refuse_node9;
  const auto writing = Writer::create(directory(), wanted).value();
  EXPECT_NE(writing->digest_key(), key_of(theirs.digest_key()));
  const std::string digest = digest_of(noise(1));
  EXPECT_FALSE(writing->find_chunk(std::as_bytes(std::span(digest)).first<kDigestBytes>(),
                                   static_cast<std::uint32_t>(kChunkBytes)));
  ASSERT_TRUE(writing->seal(describe(*writing, {noise(1)}).value()));
  ASSERT_TRUE(writing->publish());
  EXPECT_GE(writing->new_bytes(), kChunkBytes);
  expect_has("ours", {noise(1)});
  expect_has("theirs", {noise(1)});
}

}  // namespace
}  // namespace gcr::store::test
