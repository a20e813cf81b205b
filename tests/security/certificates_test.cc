// Invalid certificates are refused on real connections, in both directions, with a message that
// names the certificate and the remedy; and the command has its own exit status for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/security/support.h"

namespace gcr::daemon::test {
namespace {

using control::TlsFiles;
using gcr::test::LeafOptions;
using testing::AllOf;
using testing::HasSubstr;

/// One agent, and operators with certificates of all kinds.
class Certificates : public testing::Test {
 protected:
  static LeafOptions operators(LeafOptions leaf) {
    leaf.role = "operator";
    leaf.common_name = "alice";
    return leaf;
  }
  void write_list(const std::vector<std::string>& revoked, bool expired = false) {
    gcr::test::write_private_file(list_,
                                  credentials_.authority().revocation_list(revoked, expired));
  }
  /// The command's message after the one that the certificate is not accepted.
  std::string refusal_of(const TlsFiles& tls, const control::Endpoint& agent) {
    const Finished finished = list_with(tls, agent);
    EXPECT_EQ(finished.exit_status, kNotAuthorised) << finished.output;
    return finished.output;
  }

  control::test::Credentials credentials_;
  control::test::Credentials strangers_;
  TemporaryFolder folder_;
  std::string list_ = folder_.path() + "/revoked.crl";
  TlsFiles good_ = credentials_.issue(operators({}));
};

TEST_F(Certificates, InvalidOperatorsAreRefused) {
  const TlsFiles revoked = credentials_.issue(operators({}));
  write_list({text_of(revoked.certificate)});
  TlsFiles own = credentials_.issue({});
  own.revoked = list_;
  AgentProcess agent(own, "");

  EXPECT_EQ(list_with(good_, agent.endpoint()).exit_status, 0);
  EXPECT_THAT(refusal_of(credentials_.issue(operators({.expired = true})), agent.endpoint()),
              AllOf(HasSubstr("does not accept the certificate of this side"),
                    HasSubstr("it has expired"), HasSubstr("make a new one")));
  EXPECT_TRUE(agent.wait_for_log("certificate has expired; make a new one"));

  EXPECT_THAT(refusal_of(credentials_.issue(operators({.not_yet_valid = true})), agent.endpoint()),
              AllOf(HasSubstr("not valid yet"), HasSubstr("check both hosts' clocks")));
  EXPECT_TRUE(agent.wait_for_log("certificate is not yet valid; check both hosts' clocks"));

  EXPECT_THAT(refusal_of(revoked, agent.endpoint()),
              AllOf(HasSubstr("it is revoked"), HasSubstr("have the authority make a new one")));
  EXPECT_TRUE(agent.wait_for_log("certificate revoked; if that is a mistake"));

  TlsFiles stranger = strangers_.issue(operators({}));
  stranger.authority = good_.authority;
  EXPECT_THAT(refusal_of(stranger, agent.endpoint()), HasSubstr("certificates of one authority"));
  EXPECT_TRUE(agent.wait_for_log("both sides need certificates of one authority"));

  EXPECT_THAT(refusal_of(credentials_.issue({.role = "agent"}), agent.endpoint()),
              HasSubstr("it lacks the URI gcr:role:operator"));
  EXPECT_THAT(refusal_of(credentials_.issue({.role = ""}), agent.endpoint()),
              HasSubstr("it lacks the URI gcr:role:operator"));
}

TEST_F(Certificates, OneCertificateMayCarryBothRoles) {
  AgentProcess agent(credentials_.issue({.role = "agent,operator"}), "");
  EXPECT_EQ(list_with(credentials_.issue({.role = "operator,agent"}), agent.endpoint()).exit_status,
            0);
}

TEST_F(Certificates, InvalidAgentsAreRefused) {
  const TlsFiles revoked = credentials_.issue({});
  write_list({text_of(revoked.certificate)});
  good_.revoked = list_;
  struct Case {
    TlsFiles files;
    const char* what;
    const char* remedy;
  };
  for (const Case& bad :
       {Case{credentials_.issue({.expired = true}), "certificate has expired", "make a new one"},
        Case{credentials_.issue({.not_yet_valid = true}), "not yet valid", "hosts' clocks"},
        Case{revoked, "certificate revoked", "have the authority make a new one"},
        Case{credentials_.issue({.host = ""}), "IP address mismatch", "names this host or address"},
        Case{credentials_.issue({.role = "operator"}), "is not an agent's", "gcr:role:agent"}}) {
    AgentProcess agent(bad.files, "");
    EXPECT_THAT(refusal_of(good_, agent.endpoint()),
                AllOf(HasSubstr("127.0.0.1"), HasSubstr(bad.what), HasSubstr(bad.remedy)));
  }
  AgentProcess strange(strangers_.issue({}), "");
  EXPECT_THAT(refusal_of(good_, strange.endpoint()), HasSubstr("certificates of one authority"));
}

TEST_F(Certificates, OutdatedRevocationListRefusesAll) {
  write_list({}, true);
  TlsFiles own = credentials_.issue({});
  own.revoked = list_;
  AgentProcess agent(own, "");
  EXPECT_THAT(refusal_of(good_, agent.endpoint()), HasSubstr("list of revoked"));
  EXPECT_TRUE(agent.wait_for_log("renew the file that tls.revoked or --crl names"));

  gcr::test::write_private_file(list_, strangers_.authority().revocation_list({}));
  EXPECT_THAT(refusal_of(good_, agent.endpoint()), HasSubstr("lists of revoked certificates"));
  EXPECT_TRUE(agent.wait_for_log("renew the file that tls.revoked or --crl names"));
}

TEST_F(Certificates, InvalidRevocationListIsNamed) {
  good_.revoked = good_.key;
  const Finished finished = list_with(good_, {"127.0.0.1", 1});
  EXPECT_EQ(finished.exit_status, 2);
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("list of revoked certificates"), HasSubstr(good_.key)));
}

TEST_F(Certificates, FilesAreReadForEveryConnection) {
  TlsFiles own = credentials_.issue({});
  const TlsFiles expired = credentials_.issue({.expired = true});
  const TlsFiles fresh = credentials_.issue({});
  own.revoked = list_;
  write_list({});
  AgentProcess agent(own, "");
  const auto replace = [&](const TlsFiles& by) {
    std::filesystem::copy_file(by.certificate, own.certificate,
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::copy_file(by.key, own.key, std::filesystem::copy_options::overwrite_existing);
    ::kill(agent.pid(), SIGHUP);
  };
  EXPECT_EQ(list_with(good_, agent.endpoint()).exit_status, 0);

  replace(expired);
  EXPECT_TRUE(agent.wait_for_log("reload failed; new connections will be refused"));
  refusal_of(good_, agent.endpoint());
  replace(fresh);
  EXPECT_TRUE(agent.wait_for_log("and the certificates; new connections use them"));
  EXPECT_EQ(list_with(good_, agent.endpoint()).exit_status, 0);

  write_list({text_of(good_.certificate)});
  EXPECT_THAT(refusal_of(good_, agent.endpoint()), HasSubstr("it is revoked"));
}

/// A server of TLS 1.2 for one connection.
class OldServer {
 public:
  explicit OldServer(const gcr::test::TestAuthority& authority)
      : context_(gcr::test::make_context(TLS_server_method(), authority.issue(),
                                         authority.certificate())),
        listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
    SSL_CTX_set_max_proto_version(context_.get(), TLS1_2_VERSION);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_.get(), raw, length) != 0 || ::listen(listener_.get(), 1) != 0 ||
        ::getsockname(listener_.get(), raw, &length) != 0) {
      throw std::runtime_error("the old server cannot listen");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~OldServer() { thread_.join(); }

  control::Endpoint endpoint() const { return {"127.0.0.1", port_}; }

 private:
  void serve() {
    const UniqueFd socket(::accept(listener_.get(), nullptr, nullptr));
    std::array<char, control::kPrefaceBytes> preface{};
    if (::recv(socket.get(), preface.data(), preface.size(), MSG_WAITALL) <= 0) return;
    SSL* ssl = SSL_new(context_.get());
    SSL_set_fd(ssl, socket.get());
    SSL_accept(ssl);
    SSL_free(ssl);
  }

  gcr::test::SslContext context_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

TEST_F(Certificates, PeersWithoutTls13AreRefused) {
  const OldServer old(credentials_.authority());
  EXPECT_THAT(refusal_of(good_, old.endpoint()),
              AllOf(HasSubstr("does not support TLS 1.3"), HasSubstr("update its software")));

  AgentProcess agent(credentials_.issue({}), "");
  const auto context = gcr::test::make_context(TLS_client_method(),
                                               credentials_.authority().issue({.role = "operator"}),
                                               credentials_.authority().certificate());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  control::test::RawPeer raw(agent.port(), {control::ConnectionKind::kControl, {}});
  EXPECT_FALSE(raw.handshake(context.get()));
  EXPECT_TRUE(agent.wait_for_log("does not support TLS 1.3"));
}

}  // namespace
}  // namespace gcr::daemon::test
