// scripts/make-certs: its certificates are accepted, its revocations are effective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>

#include "tests/security/support.h"

namespace gcr::daemon::test {
namespace {

using testing::HasSubstr;

class MakeCerts : public testing::Test {
 protected:
  Finished make(std::vector<std::string> words) {
    words.insert(words.begin(), {GCR_MAKE_CERTS, "--dir", folder_.path()});
    return run_to_end(words);
  }
  control::TlsFiles files(const std::string& name) const {
    const std::string stem = folder_.path() + "/" + name;
    return {folder_.path() + "/ca.crt", stem + ".crt", stem + ".key", list()};
  }
  std::string list() const { return folder_.path() + "/revoked.crl"; }

  /// For how many days the list is valid, from its creation.
  int days_of_list() const {
    const std::unique_ptr<BIO, decltype(&BIO_free)> file(BIO_new_file(list().c_str(), "r"),
                                                         BIO_free);
    const std::unique_ptr<X509_CRL, decltype(&X509_CRL_free)> read(
        PEM_read_bio_X509_CRL(file.get(), nullptr, nullptr, nullptr), X509_CRL_free);
    int days = 0;
    int seconds = 0;
    EXPECT_EQ(ASN1_TIME_diff(&days, &seconds, X509_CRL_get0_lastUpdate(read.get()),
                             X509_CRL_get0_nextUpdate(read.get())),
              1);
    return days;
  }

  TemporaryFolder folder_;
};

TEST_F(MakeCerts, RevokedOperatorIsRefusedUntilReissued) {
  ASSERT_EQ(make({"--agent", "node1,127.0.0.1", "--operator", "me", "--crl"}).exit_status, 0);
  AgentProcess agent(files("node1"), "");
  const control::TlsFiles mine = files("me");
  EXPECT_EQ(list_with(mine, agent.endpoint()).exit_status, 0);

  const std::string kept = folder_.path() + "/kept";
  std::filesystem::copy_file(mine.certificate, kept + ".crt");
  std::filesystem::copy_file(mine.key, kept + ".key");
  ASSERT_EQ(make({"--revoke", "me"}).exit_status, 0);
  EXPECT_FALSE(std::filesystem::exists(mine.certificate));
  const Finished refused = list_with(files("kept"), agent.endpoint());
  EXPECT_EQ(refused.exit_status, 5);
  EXPECT_THAT(refused.output, HasSubstr("it is revoked"));

  ASSERT_EQ(make({"--operator", "me"}).exit_status, 0);
  EXPECT_EQ(list_with(mine, agent.endpoint()).exit_status, 0);
  EXPECT_EQ(list_with(files("kept"), agent.endpoint()).exit_status, 5);
}

TEST_F(MakeCerts, RevocationListIsValidForDays) {
  ASSERT_EQ(make({"--operator", "me", "--crl"}).exit_status, 0);
  EXPECT_EQ(days_of_list(), 30);
  ASSERT_EQ(make({"--renew-crl", "--crl-days", "7"}).exit_status, 0);
  EXPECT_EQ(days_of_list(), 7);
}

TEST_F(MakeCerts, RenewedListKeepsItsRevocations) {
  ASSERT_EQ(make({"--agent", "node1,127.0.0.1", "--operator", "me"}).exit_status, 0);
  const std::string kept = folder_.path() + "/kept";
  for (const char* end : {".crt", ".key"}) {
    std::filesystem::copy_file(folder_.path() + "/me" + end, kept + end);
  }
  ASSERT_EQ(make({"--revoke", "me"}).exit_status, 0);
  const std::string before = text_of(list());
  ASSERT_EQ(make({"--renew-crl"}).exit_status, 0);
  EXPECT_NE(text_of(list()), before);
  AgentProcess agent(files("node1"), "");
  EXPECT_THAT(list_with(files("kept"), agent.endpoint()).output, HasSubstr("it is revoked"));
}

TEST_F(MakeCerts, MissingListIsNotRenewed) {
  ASSERT_EQ(make({"--operator", "me"}).exit_status, 0);
  const Finished finished = make({"--renew-crl"});
  EXPECT_EQ(finished.exit_status, 1);
  EXPECT_THAT(finished.output, HasSubstr("there is no list to renew"));
  EXPECT_FALSE(std::filesystem::exists(list()));
}

TEST_F(MakeCerts, OnePairMayServeBothRoles) {
  ASSERT_EQ(make({"--both", "node1,127.0.0.1", "--crl"}).exit_status, 0);
  AgentProcess agent(files("node1"), "");
  EXPECT_EQ(list_with(files("node1"), agent.endpoint()).exit_status, 0);
}

TEST_F(MakeCerts, KeysAreReadableByTheirOwnerOnly) {
  ASSERT_EQ(make({"--agent", "node1", "--operator", "me"}).exit_status, 0);
  for (const char* name : {"ca.key", "node1.key", "me.key"}) {
    struct stat info {};
    ASSERT_EQ(::stat((folder_.path() + "/" + name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0777, 0600U) << name;
  }
}

TEST_F(MakeCerts, UnknownNameCannotBeRevoked) {
  ASSERT_EQ(make({"--operator", "me"}).exit_status, 0);
  const Finished finished = make({"--revoke", "m"});
  EXPECT_NE(finished.exit_status, 0);
  EXPECT_THAT(finished.output, HasSubstr("no certificate was made for m"));
}

}  // namespace
}  // namespace gcr::daemon::test
