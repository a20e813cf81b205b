// Manifests that an agent of the authority did not write are never used.
#include "store/signing.h"
#include "tests/store/support.h"

namespace gcr::store::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class ManifestFile : public Store {
 protected:
  void SetUp() override {
    take("first", {noise(1), noise(2)});
    good_ = read_file(manifest_file("first"));
  }

  Result<proto::Manifest> read_again(const control::TlsFiles& tls) const {
    return read_manifest(directory(), file_of("first"), tls);
  }
  Error refusal() const { return refusal(tls_); }
  Error refusal(const control::TlsFiles& tls) const {
    const auto manifest = read_again(tls);
    if (manifest) return Error(Code::kInvalid, "it was believed");
    EXPECT_THAT(manifest.error().message(), HasSubstr("first.checkpoint"));
    return manifest.error();
  }
  /// As the agent would sign it.
  Status write_signed(const proto::Manifest& manifest, const control::TlsFiles& tls) const {
    std::filesystem::remove(manifest_file("first"));
    return write_manifest(directory(), file_of("first"), manifest, tls);
  }

  Bytes good_;
};

TEST_F(ManifestFile, EveryAlteredByteIsNoticed) {
  for (std::size_t at = 0; at < good_.size(); at += at < 64 ? 1 : 7) {
    Bytes altered = good_;
    altered[at] ^= std::byte{1};
    write_file(manifest_file("first"), altered);
    const Error error = refusal();
    EXPECT_THAT(error.code(), AnyOf(Code::kDataLoss, Code::kPermissionDenied, Code::kUnsupported))
        << "at byte " << at << ": " << error.message();
  }
}

TEST_F(ManifestFile, TruncationIsNoticed) {
  for (std::size_t length = 0; length < good_.size(); ++length) {
    write_file(manifest_file("first"), std::span(good_).first(length));
    ASSERT_EQ(refusal().code(), Code::kDataLoss) << "at byte " << length;
  }
}

TEST_F(ManifestFile, TrailingBytesAreNoticed) {
  Bytes longer = good_;
  longer.push_back(std::byte{0});
  write_file(manifest_file("first"), longer);
  EXPECT_EQ(refusal().code(), Code::kDataLoss);
}

TEST_F(ManifestFile, ExcessiveLengthsAreNotAllocated) {
  for (const std::size_t at : {11u, 15u, 23u}) {  // the highest byte of each length
    Bytes altered = good_;
    altered[at] = std::byte{0x7f};
    write_file(manifest_file("first"), altered);
    EXPECT_EQ(refusal().code(), Code::kDataLoss);
  }
}

TEST_F(ManifestFile, ManifestOfAnotherAuthorityIsRefused) {
  control::test::Credentials strangers;
  const Error error = refusal(strangers.issue({}));
  EXPECT_EQ(error.code(), Code::kPermissionDenied);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("node1"), HasSubstr("not accepted here")));
}

TEST_F(ManifestFile, RevokedAgentIsRefused) {
  const Bytes certificate = read_file(tls_.certificate);
  control::TlsFiles tls = tls_;
  tls.revoked = folder_.path() / "revoked.crl";
  const std::string text(reinterpret_cast<const char*>(certificate.data()), certificate.size());
  gcr::test::write_private_file(tls.revoked, credentials_.authority().revocation_list({}));
  EXPECT_TRUE(read_again(tls));
  gcr::test::write_private_file(tls.revoked, credentials_.authority().revocation_list({text}));
  const Error error = refusal(tls);
  EXPECT_EQ(error.code(), Code::kPermissionDenied);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("node1"), HasSubstr("revoked")));
}

TEST_F(ManifestFile, IssuingAuthorityAloneIsEnough) {
  const gcr::test::TestAuthority root("root");
  const gcr::test::TestAuthority issuing("issuing", root);
  const gcr::test::TestAuthority sibling("sibling", root);
  const control::TlsFiles tls = credentials_.issue({.common_name = "node1"});
  const gcr::test::PemPair pair = issuing.issue();
  gcr::test::write_private_file(tls.certificate, pair.certificate);
  gcr::test::write_private_file(tls.key, pair.key);
  ASSERT_TRUE(write_signed(read("first"), tls));
  control::TlsFiles trusting = tls;
  trusting.authority = folder_.path() / "issuing.crt";
  gcr::test::write_private_file(trusting.authority, issuing.certificate());
  EXPECT_TRUE(read_again(trusting));
  gcr::test::write_private_file(trusting.authority, sibling.certificate());
  EXPECT_EQ(refusal(trusting).code(), Code::kPermissionDenied);
}

TEST_F(ManifestFile, EncryptedKeyIsRefused) {
  const control::TlsFiles tls = credentials_.issue({});
  const Bytes key = read_file(tls.key);
  gcr::test::write_private_file(
      tls.key, gcr::test::encrypted({reinterpret_cast<const char*>(key.data()), key.size()}));
  EXPECT_THAT(write_signed(read("first"), tls).error().message(), HasSubstr("is encrypted"));
}

TEST(Signer, EncryptedCertificateFailsWithoutAPrompt) {
  control::test::Credentials credentials;
  std::string chain = credentials.authority().issue().certificate;
  const std::string begin = "-----BEGIN CERTIFICATE-----\n";
  ASSERT_TRUE(chain.starts_with(begin));
  chain.insert(
      begin.size(),
      "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00112233445566778899AABBCCDDEEFF\n\n");
  testing::internal::CaptureStderr();
  const auto signer = Signer::verify(chain, credentials.issue({}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_FALSE(signer);
  EXPECT_THAT(signer.error().message(), HasSubstr("shows no certificate"));
}

TEST_F(ManifestFile, ExpiredRevocationListIsRefused) {
  control::TlsFiles tls = tls_;
  tls.revoked = folder_.path() / "revoked.crl";
  gcr::test::write_private_file(tls.revoked, credentials_.authority().revocation_list({}, true));
  EXPECT_EQ(refusal(tls).code(), Code::kPermissionDenied);
}

TEST_F(ManifestFile, ExpiredAgentIsRefused) {
  ASSERT_TRUE(write_signed(read("first"), credentials_.issue({.expired = true})));
  const Error error = refusal();
  EXPECT_EQ(error.code(), Code::kPermissionDenied);
  EXPECT_THAT(error.message(), HasSubstr("expired"));
}

TEST_F(ManifestFile, OperatorsSignatureIsRefused) {
  ASSERT_TRUE(write_signed(read("first"), credentials_.issue({.role = "operator"})));
  const Error error = refusal();
  EXPECT_EQ(error.code(), Code::kPermissionDenied);
  EXPECT_THAT(error.message(), HasSubstr("gcr:role:agent"));
}

TEST_F(ManifestFile, AnotherAgentsSignatureIsAccepted) {
  ASSERT_TRUE(write_signed(read("first"), credentials_.issue({.common_name = "node2"})));
  EXPECT_EQ(read("first").agent(), "node2");
}

TEST_F(ManifestFile, ManifestUnderAnotherNameIsRefused) {
  take("second", {noise(3), noise(4)});
  std::filesystem::copy_file(manifest_file("second"), manifest_file("first"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(refusal().message(), HasSubstr("renamed"));
}

TEST_F(ManifestFile, OtherFormatIsUnsupported) {
  Bytes later = good_;
  later[7] = std::byte{'2'};
  write_file(manifest_file("first"), later);
  EXPECT_EQ(refusal().code(), Code::kUnsupported);
  proto::Manifest manifest;
  manifest.set_format(2);
  EXPECT_EQ(check_manifest(manifest).error().code(), Code::kUnsupported);
}

TEST_F(ManifestFile, CombinedPemFileDoesNotLeakItsKey) {
  Bytes both = read_file(tls_.certificate);
  const Bytes key = read_file(tls_.key);
  both.insert(both.end(), key.begin(), key.end());
  control::TlsFiles tls = tls_;
  tls.certificate = folder_.path() / "both.pem";
  write_file(tls.certificate, both);
  ASSERT_TRUE(write_signed(read("first"), tls));
  const Bytes file = read_file(manifest_file("first"));
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  EXPECT_EQ(text.find("PRIVATE"), std::string_view::npos);
  EXPECT_TRUE(read_again(tls_));
}

TEST_F(ManifestFile, WithoutAKeyNothingIsWritten) {
  control::TlsFiles tls = tls_;
  tls.key = "/nonexistent";
  EXPECT_EQ(write_signed(read("first"), tls).error().code(), Code::kInvalidArgument);
  tls.key = credentials_.issue({}).key;  // that of another certificate
  std::filesystem::remove(manifest_file("first"));
  write_file(manifest_file("first"), good_);
  EXPECT_EQ(write_signed(read("first"), tls).error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(manifest_file("first")));
}

/// A layer of the job's container; its pack is an image of the checkpoint.
proto::Layer& add_layer(proto::Manifest& manifest, const std::string& point) {
  manifest.mutable_job()->mutable_from_container();
  proto::Layer& layer = *manifest.add_layers();
  layer.set_point(point);
  return layer;
}

TEST_F(ManifestFile, LayersOfAContainerAreAccepted) {
  proto::Manifest manifest = read("first");
  add_layer(manifest, "/").add_packs(manifest.images(0).name());
  add_layer(manifest, "/tmp");
  EXPECT_TRUE(check_manifest(manifest));
}

using Change = void (*)(proto::Manifest&);

class Inconsistent : public Store, public testing::WithParamInterface<Change> {};

TEST_P(Inconsistent, ManifestIsRefused) {
  proto::Manifest manifest = take("first", {noise(1), noise(2)});
  ASSERT_TRUE(check_manifest(manifest));
  GetParam()(manifest);
  const Status checked = check_manifest(manifest);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), Code::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(
    , Inconsistent,
    testing::Values(
        +[](proto::Manifest& m) { m.set_name("../x"); },
        +[](proto::Manifest& m) { m.set_checkpoint_id("short"); },
        +[](proto::Manifest& m) { m.set_content_key("short"); },
        +[](proto::Manifest& m) { m.clear_digest_key(); },
        +[](proto::Manifest& m) { m.mutable_content_names()->pop_back(); },
        +[](proto::Manifest& m) { m.add_content_bytes(1); },
        +[](proto::Manifest& m) { m.set_content_bytes(0, 0); },
        +[](proto::Manifest& m) { m.set_content_bytes(0, kMaxContentBytes + 1); },
        +[](proto::Manifest& m) { m.set_content_bytes(0, 1); },
        +[](proto::Manifest& m) {
          m.mutable_content_names()->replace(32, 32, m.content_names(), 0, 32);
        },
        +[](proto::Manifest& m) { m.mutable_buffers(0)->set_id(8); },
        +[](proto::Manifest& m) { m.add_buffers(); }, +[](proto::Manifest& m) { m.clear_vram(); },
        +[](proto::Manifest& m) { m.mutable_buffers(0)->set_size_bytes(~std::uint64_t{0}); },
        +[](proto::Manifest& m) { m.mutable_vram(0)->mutable_digests()->pop_back(); },
        +[](proto::Manifest& m) { m.mutable_vram(0)->set_contents(0, 3); },
        +[](proto::Manifest& m) { m.mutable_vram(0)->set_contents(0, ~std::uint32_t{0}); },
        +[](proto::Manifest& m) { m.mutable_images(0)->clear_name(); },
        +[](proto::Manifest& m) { m.mutable_images(0)->set_size_bytes(1); },
        +[](proto::Manifest& m) { m.mutable_images(0)->set_size_bytes(~std::uint64_t{0}); },
        +[](proto::Manifest& m) { *m.add_images() = m.images(0); },
        +[](proto::Manifest& m) { *m.add_memories() = m.images(0); },
        +[](proto::Manifest& m) { m.mutable_images(0)->mutable_extents(0)->set_bytes(0); },
        +[](proto::Manifest& m) { m.mutable_images(0)->mutable_extents(0)->set_content(2); },
        +[](proto::Manifest& m) { m.mutable_images(0)->mutable_extents(0)->set_from(1); },
        +[](proto::Manifest& m) {
          m.mutable_images(0)->mutable_extents(0)->set_from(~std::uint32_t{0});
        },
        +[](proto::Manifest& m) { m.mutable_images(0)->mutable_extents(1)->set_offset(1); },
        +[](proto::Manifest& m) {
          m.mutable_images(0)->mutable_extents(1)->set_offset(~std::uint64_t{0});
        },
        +[](proto::Manifest& m) { add_layer(m, "tmp"); },
        +[](proto::Manifest& m) { add_layer(m, "/").add_packs("absent"); },
        +[](proto::Manifest& m) {
          for (const char* point : {"/", "/tmp"}) add_layer(m, point).add_packs(m.images(0).name());
        },
        +[](proto::Manifest& m) {
          for (const char* point : {"/", "/"}) add_layer(m, point);
        },
        +[](proto::Manifest& m) {
          add_layer(m, "/");
          m.mutable_job()->clear_from_container();
        }));

}  // namespace
}  // namespace gcr::store::test
