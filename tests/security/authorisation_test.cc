// Which client may request what, and for whose processes.
#include "migrate-agent/worker/runtime/authorisation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/daemon/journals.h"
#include "tests/security/support.h"

namespace gcr::daemon::test {
namespace {

using control::PeerIdentity;
using proto::Envelope;
using testing::AllOf;
using testing::HasSubstr;

const PeerIdentity kOperator{.common_name = "night-shift", .is_operator = true};
const PeerIdentity kAgent{.common_name = "node2", .is_agent = true};
const PeerIdentity kLocalAlice{.common_name = "uid 71001", .uid = kAlice};
const PeerIdentity kLocalRoot{.common_name = "uid 0", .uid = 0};

TEST(Authorisation, RoleLimitsTheFirstRequest) {
  for (const auto request :
       {Envelope::kMigrateRequest, Envelope::kCheckRequest, Envelope::kCancelRequest,
        Envelope::kContinueRequest, Envelope::kAdjustRequest, Envelope::kListRequest,
        Envelope::kStatusRequest, Envelope::kHostRequest}) {
    EXPECT_TRUE(worker::may_ask(kOperator, request));
    EXPECT_TRUE(worker::may_ask(kLocalAlice, request));
    EXPECT_FALSE(worker::may_ask(kAgent, request));
  }
  for (const auto request :
       {Envelope::kPreflightRequest, Envelope::kOutcomeRequest, Envelope::kCommitRequest}) {
    EXPECT_TRUE(worker::may_ask(kAgent, request));
    EXPECT_FALSE(worker::may_ask(kOperator, request));
    EXPECT_FALSE(worker::may_ask(kLocalRoot, request));
  }
}

TEST(Authorisation, LocalUsersMayNotResolve) {
  EXPECT_TRUE(worker::may_ask(kOperator, Envelope::kResolveRequest));
  EXPECT_TRUE(worker::may_ask(kLocalRoot, Envelope::kResolveRequest));
  const Status refused = worker::may_ask(kLocalAlice, Envelope::kResolveRequest);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
}

TEST(Authorisation, ReplyIsNoValidFirstMessage) {
  const Status refused = worker::may_ask(kOperator, Envelope::kMigrateReport);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kProtocol);
}

TEST(Authorisation, WithoutRulesEveryOperatorMayMoveEverything) {
  EXPECT_TRUE(worker::Permissions::of(kOperator, {}).everyone());
  EXPECT_TRUE(worker::Permissions::of(kOperator, {}).may_move(0));
}

TEST(Authorisation, RulesOfANameAndForAllAddUp) {
  const std::vector<worker::OperatorRule> rules{{.name = "night-shift", .users = {"71001"}},
                                                {.name = "*", .users = {"daemon"}},
                                                {.name = "another-operator", .users = {"*"}}};
  const worker::Permissions permissions = worker::Permissions::of(kOperator, rules);
  EXPECT_FALSE(permissions.everyone());
  EXPECT_TRUE(permissions.may_move(kAlice));
  EXPECT_TRUE(permissions.may_move(1)) << "daemon";
  EXPECT_FALSE(permissions.may_move(kBob));
  EXPECT_FALSE(permissions.may_move(0));
}

TEST(Authorisation, OperatorWithoutARuleMayMoveNothing) {
  const worker::Permissions permissions =
      worker::Permissions::of(kOperator, {{.name = "another-operator", .users = {"*"}}});
  EXPECT_FALSE(permissions.may_move(kAlice));
  const Status refused = permissions.check(kAlice);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("\"night-shift\""), HasSubstr("uid 71001"), HasSubstr("operators")));
}

TEST(Authorisation, RuleForAnUnknownUserGrantsNothing) {
  const worker::Permissions permissions =
      worker::Permissions::of(kOperator, {{.name = "*", .users = {"no such user", "-1", ""}}});
  EXPECT_FALSE(permissions.everyone());
  EXPECT_FALSE(permissions.may_move(0));
  EXPECT_FALSE(permissions.may_move(static_cast<uid_t>(-1)));
}

TEST(Authorisation, AgentsMayMoveNothing) {
  EXPECT_FALSE(worker::Permissions::of(kAgent, {}).everyone());
  EXPECT_FALSE(worker::Permissions::of(kAgent, {}).may_move(0));
  EXPECT_FALSE(worker::Permissions().may_move(0));
}

TEST(Authorisation, LocalUsersMayAlwaysMoveTheirOwn) {
  const std::vector<worker::OperatorRule> rules{{.name = "*", .users = {"*"}},
                                                {.name = "uid 71001", .users = {"*"}}};
  const worker::Permissions alice = worker::Permissions::of(kLocalAlice, rules);
  EXPECT_FALSE(alice.everyone());
  EXPECT_TRUE(alice.may_move(kAlice));
  EXPECT_FALSE(alice.may_move(kBob));
  EXPECT_FALSE(alice.may_move(0));
  EXPECT_TRUE(worker::Permissions::of(kLocalRoot, {{.name = "x", .users = {}}}).everyone());
}

class Ownership : public testing::Test {
 protected:
  Code code_of(const worker::Permissions& permissions, pid_t pid) {
    const auto checked = permissions.check_process(pid);
    return checked ? Code::kInvalid : checked.error().code();
  }
  worker::Permissions alice_ = worker::Permissions::of(kLocalAlice, {});
  worker::Permissions operator_of_alice_ =
      worker::Permissions::of(kOperator, {{.name = "night-shift", .users = {"71001"}}});
};

TEST_F(Ownership, OwnProcessIsAccepted) {
  const Sleeper own(kAlice);
  for (const worker::Permissions& permissions : {alice_, operator_of_alice_}) {
    const auto checked = permissions.check_process(own.pid());
    ASSERT_TRUE(checked) << checked.error().message();
    EXPECT_EQ(checked->uid, kAlice);
    EXPECT_GT(checked->start_time, 0U);
  }
}

TEST_F(Ownership, ProcessOfAnotherUserIsRefused) {
  const Sleeper others(kBob);
  EXPECT_EQ(code_of(alice_, others.pid()), Code::kPermissionDenied);
  EXPECT_EQ(code_of(operator_of_alice_, others.pid()), Code::kPermissionDenied);
}

TEST_F(Ownership, EveryUserIdIsChecked) {
  // As a setuid program has them: real, effective, saved.
  for (const auto& ids : std::vector<std::array<uid_t, 3>>{
           {kAlice, 0, 0}, {0, kAlice, kAlice}, {kAlice, kAlice, 0}, {kAlice, kBob, kAlice}}) {
    const Sleeper mixed([&] {
      if (::setresuid(ids[0], ids[1], ids[2]) != 0) ::_exit(1);
      ::prctl(PR_SET_DUMPABLE, 1);
    });
    EXPECT_EQ(code_of(alice_, mixed.pid()), Code::kPermissionDenied);
    EXPECT_EQ(code_of(operator_of_alice_, mixed.pid()), Code::kPermissionDenied);
    const auto as_root = worker::Permissions::of(kLocalRoot, {}).check_process(mixed.pid());
    ASSERT_TRUE(as_root);
    const bool roots = ids[0] == 0 || ids[1] == 0 || ids[2] == 0;
    EXPECT_EQ(as_root->uid, roots ? 0 : kBob) << "the owner of the migration";
  }
}

TEST_F(Ownership, UntraceableProcessIsRefused) {
  const Sleeper protected_one([] {
    if (::setresuid(kAlice, kAlice, kAlice) != 0) ::_exit(1);
    ::prctl(PR_SET_DUMPABLE, 0);
  });
  EXPECT_EQ(code_of(alice_, protected_one.pid()), Code::kPermissionDenied);
  EXPECT_EQ(code_of(operator_of_alice_, protected_one.pid()), Code::kInvalid);
}

TEST_F(Ownership, ProcessWithCapabilitiesIsRefused) {
  const Sleeper capable([] {
    ::prctl(PR_SET_KEEPCAPS, 1);
    if (::setresuid(kAlice, kAlice, kAlice) != 0) ::_exit(1);
    ::prctl(PR_SET_DUMPABLE, 1);
  });
  EXPECT_EQ(code_of(alice_, capable.pid()), Code::kPermissionDenied);
}

/// Stored data is readable by the process's user, also if another user ordered the checkpoint.
TEST_F(Ownership, StoreAcceptsOnlyPlainProcessesOfItsUser) {
  const worker::Permissions of_both =
      worker::Permissions::of(kOperator, {{.name = "*", .users = {"71001", "71002"}}});
  const worker::Permissions stored = of_both.for_store_of(kAlice);
  const Sleeper own(kAlice);
  const Sleeper others(kBob);
  const Sleeper protected_one([] {
    if (::setresuid(kAlice, kAlice, kAlice) != 0) ::_exit(1);
    ::prctl(PR_SET_DUMPABLE, 0);
  });
  const Sleeper capable([] {
    ::prctl(PR_SET_KEEPCAPS, 1);
    if (::setresuid(kAlice, kAlice, kAlice) != 0) ::_exit(1);
    ::prctl(PR_SET_DUMPABLE, 1);
  });
  EXPECT_EQ(code_of(stored, own.pid()), Code::kInvalid);
  for (const Sleeper* sleeper : {&others, &protected_one, &capable}) {
    EXPECT_EQ(code_of(of_both, sleeper->pid()), Code::kInvalid);
    EXPECT_EQ(code_of(stored, sleeper->pid()), Code::kPermissionDenied);
    const worker::Permissions of_all = worker::Permissions::of(kOperator, {});
    EXPECT_EQ(code_of(of_all.for_store_of(kAlice), sleeper->pid()), Code::kInvalid);
  }
}

TEST(Authorisation, ThreadIsCheckedByItsDumpedCredentials) {
  const worker::Permissions alice = worker::Permissions::of(kLocalAlice, {});
  proto::Credentials thread;
  for (int id = 0; id < 4; ++id) thread.add_uids(kAlice);
  EXPECT_TRUE(alice.check_thread(thread));
  thread.set_permitted(1);
  EXPECT_FALSE(alice.check_thread(thread));
  thread.set_permitted(0);
  thread.set_uids(3, 0);
  EXPECT_FALSE(alice.check_thread(thread));
}

TEST_F(Ownership, MissingProcessIsNotFound) {
  pid_t gone = -1;
  {
    const Sleeper short_lived(kAlice);
    gone = short_lived.pid();
  }
  for (const pid_t pid : {gone, 0, -1}) EXPECT_EQ(code_of(alice_, pid), Code::kNotFound);
}

/// Requests to the real agent, whose configuration lets one operator move alice's processes.
class OperatorRules : public testing::Test {
 protected:
  proto::Envelope ask_as(const char* name, const proto::Envelope& request) {
    Client client(agent_, credentials_.context({.role = "operator", .common_name = name}));
    return client.call(request);
  }
  proto::MigrateReport migrate_as(const char* name, pid_t pid) {
    Client client(agent_, credentials_.context({.role = "operator", .common_name = name}));
    proto::Envelope request;
    request.mutable_migrate_request()->set_pid(pid);
    request.mutable_migrate_request()->set_destination("127.0.0.1:1");
    client.send(request);
    for (;;) {
      proto::Envelope message = client.receive();
      if (message.has_migrate_report()) return message.migrate_report();
    }
  }

  control::test::Credentials credentials_;
  AgentProcess agent_{credentials_,
                      "operators = [{name = \"for-alice\", users = [\"71001\"]}, "
                      "{name = \"for-all\", users = [\"*\"]}]"};
};

TEST_F(OperatorRules, ProcessOfAnotherUserIsNotAuthorised) {
  const Sleeper bobs(kBob);
  const auto report = migrate_as("for-alice", bobs.pid());
  EXPECT_EQ(report.code(), "permission-denied");
  EXPECT_FALSE(report.source_touched());
}

TEST_F(OperatorRules, ProcessOfTheRulesUserIsExamined) {
  const Sleeper alices(kAlice);
  EXPECT_EQ(migrate_as("for-alice", alices.pid()).code(), "refused") << "not under the library";
  EXPECT_EQ(migrate_as("for-all", alices.pid()).code(), "refused");
  EXPECT_EQ(migrate_as("for-no-user", alices.pid()).code(), "permission-denied");
}

TEST_F(OperatorRules, OtherMigrationsAreHidden) {
  const Uuid bobs = write_source(agent_.state_dir(), commit::SourceState::kUndone,
                                 {.uid = kBob, .ordered_by = "for-all"});
  const Uuid alices = write_source(agent_.state_dir(), commit::SourceState::kUndone,
                                   {.uid = kAlice, .ordered_by = "for-alice"});
  proto::Envelope list;
  list.mutable_list_request()->set_finished(true);
  const auto seen = ask_as("for-alice", list).list_reply();
  ASSERT_EQ(seen.migrations_size(), 1);
  EXPECT_EQ(seen.migrations(0).migration_id(), to_bytes(alices));
  EXPECT_EQ(seen.migrations(0).ordered_by(), "for-alice");
  EXPECT_EQ(ask_as("for-all", list).list_reply().migrations_size(), 2);
  EXPECT_EQ(ask_as("for-no-user", list).list_reply().migrations_size(), 0);

  proto::Envelope status;
  proto::Envelope cancel;
  proto::Envelope go_on;
  proto::Envelope adjust;
  proto::Envelope resolve;
  status.mutable_status_request()->set_migration_id(to_bytes(bobs));
  cancel.mutable_cancel_request()->set_migration_id(to_bytes(bobs));
  go_on.mutable_continue_request()->set_migration_id(to_bytes(bobs));
  adjust.mutable_adjust_request()->set_migration_id(to_bytes(bobs));
  adjust.mutable_adjust_request()->set_downtime_limit_ms(100);
  resolve.mutable_resolve_request()->set_migration_id(to_bytes(bobs));
  for (const proto::Envelope& request : {status, cancel, go_on, adjust, resolve}) {
    EXPECT_EQ(ask_as("for-alice", request).failure().code(), "permission-denied")
        << request.ShortDebugString();
    EXPECT_NE(ask_as("for-all", request).failure().code(), "permission-denied");
  }
  EXPECT_TRUE(ask_as("for-all", status).has_status_reply());
}

}  // namespace
}  // namespace gcr::daemon::test
