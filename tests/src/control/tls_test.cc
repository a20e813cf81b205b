// Access: certificates of the wrong authority, role, host, age or version of TLS are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/src/control/peers.h"

namespace gcr::control::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Tls : public testing::Test {
 protected:
  Credentials ours_;
  Credentials strangers_;
  Loopback loopback_;
};

TEST_F(Tls, ClientOfAnotherAuthorityIsRefusedByTheServer) {
  const TlsFiles stranger = strangers_.issue({});
  TlsFiles mixed = ours_.issue({});
  mixed.certificate = stranger.certificate;
  mixed.key = stranger.key;
  const auto client_context = make_tls_context(mixed);
  ASSERT_TRUE(client_context) << client_context.error().message();
  const auto [server, client] = loopback_.connect_both(ours_.context({}), *client_context);
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(server.error().message(), HasSubstr("certificate"));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(client.error().message(), HasSubstr("does not accept the certificate of this side"));
}

TEST_F(Tls, ServerOfAnotherAuthorityIsRefusedByTheClient) {
  const auto [server, client] = loopback_.connect_both(strangers_.context({}), ours_.context({}));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(client.error().message(),
              AllOf(HasSubstr("the certificate of the agent at 127.0.0.1"),
                    HasSubstr("certificates of one authority")));
  EXPECT_FALSE(server);
}

TEST_F(Tls, ExpiredCertificateIsRefused) {
  const auto [server, client] =
      loopback_.connect_both(ours_.context({.expired = true}), ours_.context({}));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(client.error().message(), HasSubstr("expired"));
  EXPECT_FALSE(server);
}

TEST_F(Tls, ServerWithoutTheAgentRoleIsRefused) {
  const auto [server, client] = loopback_.connect_both(
      ours_.context({.role = "operator", .common_name = "alice"}), ours_.context({}));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(client.error().message(), HasSubstr("gcr:role:agent"));
  EXPECT_FALSE(server);
}

TEST_F(Tls, ServerOfAnotherHostIsRefused) {
  const auto [server, client] =
      loopback_.connect_both(ours_.context({.host = "node2"}), ours_.context({}), "localhost");
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(client.error().message(), HasSubstr("made out to another host"));
  EXPECT_FALSE(server);
}

TEST_F(Tls, RolesAreThoseOfTheCertificate) {
  const auto [server, client] = loopback_.connect_both(
      ours_.context({}), ours_.context({.role = "", .common_name = "roleless"}));
  ASSERT_TRUE(server) << server.error().message();
  EXPECT_FALSE((*server)->peer().is_agent);
  EXPECT_FALSE((*server)->peer().is_operator);
}

TEST_F(Tls, RoleUriMustMatchWhole) {
  const auto [server, client] = loopback_.connect_both(
      ours_.context({}), ours_.context({.role = "operator2", .common_name = "mallory"}));
  ASSERT_TRUE(server) << server.error().message();
  EXPECT_FALSE((*server)->peer().is_operator);
}

/// The server's error for a raw client with this context.
class RawTls : public Tls {
 protected:
  Error refusal_of(SSL_CTX* context) {
    std::thread peer([&] {
      RawPeer raw(loopback_.endpoint().port, Preface{ConnectionKind::kControl, {}});
      if (!raw.handshake(context)) return;
      raw.write_message(hello());
      while (raw.read_message()) continue;
    });
    std::optional<ChannelResult> accepted;
    std::vector<asio::awaitable<void>> one;
    one.push_back(accept(accepted));
    loopback_.run(std::move(one));
    peer.join();
    return *accepted ? Error(Code::kInternal, "it was accepted") : accepted->error();
  }

  asio::awaitable<void> accept(std::optional<ChannelResult>& accepted) {
    const auto tls = ours_.context({});
    accepted.emplace(co_await loopback_.accept(tls));
  }
};

TEST_F(RawTls, ClientWithoutACertificateIsRefused) {
  const gcr::test::SslContext context(SSL_CTX_new(TLS_client_method()));
  const Error refusal = refusal_of(context.get());
  EXPECT_EQ(refusal.code(), Code::kPermissionDenied);
  EXPECT_THAT(refusal.message(), HasSubstr("shows no certificate"));
}

TEST_F(RawTls, ClientOfTls12IsRefused) {
  const auto context = gcr::test::make_context(TLS_client_method(), ours_.authority().issue(),
                                               ours_.authority().certificate());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  const Error refusal = refusal_of(context.get());
  EXPECT_EQ(refusal.code(), Code::kPermissionDenied);
  EXPECT_THAT(refusal.message(), HasSubstr("does not support TLS 1.3"));
}

TEST_F(Tls, UnusableFilesAreNamed) {
  TlsFiles files = ours_.issue({});
  const std::string other_key = ours_.issue({}).key;
  for (std::string TlsFiles::*file :
       {&TlsFiles::authority, &TlsFiles::certificate, &TlsFiles::key}) {
    TlsFiles without = files;
    without.*file = "/nonexistent/file.pem";
    const auto context = make_tls_context(without);
    ASSERT_FALSE(context);
    EXPECT_EQ(context.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(context.error().message(), HasSubstr("/nonexistent/file.pem"));
  }
  files.key = other_key;
  const auto mismatched = make_tls_context(files);
  ASSERT_FALSE(mismatched);
  EXPECT_THAT(mismatched.error().message(), HasSubstr(other_key));
}

/// A root, an issuing authority below it and a sibling of that.
class Chain : public testing::Test {
 protected:
  /// A context: a leaf of `issuer`, with `appended` after it in its file.
  std::shared_ptr<asio::ssl::context> context(const gcr::test::TestAuthority& issuer,
                                              const std::string& trusted,
                                              const std::string& appended = "") {
    TlsFiles files = folder_.issue({});
    const gcr::test::PemPair pair = issuer.issue();
    gcr::test::write_private_file(files.key, pair.key);
    gcr::test::write_private_file(files.certificate, pair.certificate + appended);
    files.authority = files.certificate + ".ca";
    gcr::test::write_private_file(files.authority, trusted);
    if (!revoked_.empty()) {
      files.revoked = files.certificate + ".crl";
      gcr::test::write_private_file(files.revoked, revoked_);
    }
    auto made = make_tls_context(files);
    if (!made) throw std::runtime_error(made.error().message());
    return *made;
  }

  /// Both sides trust `trusted`; the server's certificate is from `issuer`, the client's from the
  /// issuing authority.
  std::pair<ChannelResult, ChannelResult> connect_both(const gcr::test::TestAuthority& issuer,
                                                       const std::string& trusted,
                                                       const std::string& appended = "") {
    return loopback_.connect_both(context(issuer, trusted, appended),
                                  context(issuing_, trusted, appended));
  }

  Credentials folder_;
  gcr::test::TestAuthority root_{"root"};
  gcr::test::TestAuthority issuing_{"issuing", root_};
  gcr::test::TestAuthority sibling_{"sibling", root_};
  std::string revoked_;
  Loopback loopback_;
};

TEST_F(Chain, IssuingAuthorityAloneIsEnough) {
  const auto [server, client] = connect_both(issuing_, issuing_.certificate());
  EXPECT_TRUE(server) << server.error().message();
  EXPECT_TRUE(client) << client.error().message();
}

TEST_F(Chain, IssuingAuthorityDoesNotTrustItsSiblings) {
  for (const gcr::test::TestAuthority* other : {&sibling_, &root_}) {
    const auto [server, client] = connect_both(*other, issuing_.certificate());
    ASSERT_FALSE(client);
    EXPECT_EQ(client.error().code(), Code::kPermissionDenied);
    EXPECT_THAT(client.error().message(), HasSubstr("append its certificate"));
  }
}

TEST_F(Chain, RevocationListOfTheIssuerIsApplied) {
  revoked_ = issuing_.revocation_list({});
  const auto [server, client] = connect_both(issuing_, issuing_.certificate());
  EXPECT_TRUE(client) << client.error().message();
  revoked_ = root_.revocation_list({});
  const auto [unlisted, stranger] = connect_both(issuing_, issuing_.certificate());
  ASSERT_FALSE(stranger);
  EXPECT_THAT(stranger.error().message(), HasSubstr("renew the file"));
}

TEST_F(Chain, RootAloneNeedsTheIssuingCertificate) {
  const std::string both = root_.certificate() + issuing_.certificate();
  EXPECT_TRUE(connect_both(issuing_, both).second);
  EXPECT_TRUE(connect_both(issuing_, root_.certificate(), issuing_.certificate()).second);
  const auto [server, client] = connect_both(issuing_, root_.certificate());
  ASSERT_FALSE(client);
  EXPECT_THAT(client.error().message(), HasSubstr("append its certificate"));
}

TEST_F(Tls, EncryptedKeyIsRefusedWithoutAPrompt) {
  const TlsFiles files = ours_.issue({});
  gcr::test::write_private_file(files.key, gcr::test::encrypted(ours_.authority().issue().key));
  const auto context = make_tls_context(files);
  ASSERT_FALSE(context);
  EXPECT_EQ(context.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(context.error().message(),
              AllOf(HasSubstr(files.key + " is encrypted"), HasSubstr("mode 600")));
}

}  // namespace
}  // namespace gcr::control::test
