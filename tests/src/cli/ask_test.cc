// gcr-migrate cancel, status, list, host and resolve, with a fake agent for each reply.
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "tests/src/cli/migrate_fixture.h"
#include "tests/support/terminal.h"

namespace gcr::cli::test {
namespace {

using control::ControlChannel;
using testing::HasSubstr;

constexpr const char* kOne = "6f1c2d3e-0000-4000-8000-000000000001";
constexpr const char* kOther = "6f1c2d3e-ffff-4000-8000-000000000002";

std::string bytes(const char* text) {
  const Uuid id = Uuid::parse(text).value();
  return {id.bytes.begin(), id.bytes.end()};
}

proto::MigrationStatus known(const char* id) {
  proto::MigrationStatus status;
  status.set_migration_id(bytes(id));
  status.set_role("source");
  status.set_state("undone");
  status.set_finished(true);
  status.set_peer("node2:7411");
  status.set_pid(4711);
  status.set_processes(37);
  status.set_command("python3 serve.py\x1b[2J");
  status.set_began_unix_ms(1'700'000'000'000);
  status.set_code("timeout");
  status.set_message("too slow");
  return status;
}

Play answer_with(const proto::Envelope& message) {
  return [message](ControlChannel& channel) -> asio::awaitable<void> {
    const Status sent = co_await channel.send(message);
    EXPECT_TRUE(sent);
  };
}

proto::Envelope list_of(const std::vector<proto::MigrationStatus>& migrations) {
  proto::Envelope message;
  message.mutable_list_reply();
  for (const auto& status : migrations) *message.mutable_list_reply()->add_migrations() = status;
  return message;
}

proto::Envelope status_of(const proto::MigrationStatus& status) {
  proto::Envelope message;
  *message.mutable_status_reply()->add_migrations() = status;
  return message;
}

proto::MigrationStatus working() {
  proto::MigrationStatus status = known(kOne);
  status.set_state("working");
  status.set_finished(false);
  return status;
}

proto::Envelope cancelled() {
  proto::Envelope message;
  message.mutable_cancel_reply();
  return message;
}

google::protobuf::Struct parsed(const std::string& json) {
  google::protobuf::Struct object;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &object).ok()) << json;
  return object;
}

class Ask : public testing::Test {
 protected:
  /// `command` AGENT and then the other arguments.
  Finished ask(std::vector<Play> plays, const std::string& command,
               const std::vector<std::string>& others) {
    FakeAgent agent(credentials_.context({}), std::move(plays));
    Finished finished = run_cli(words(command, agent.address(), others));
    requests_ = agent.requests();
    return finished;
  }
  std::vector<std::string> words(const std::string& command, const std::string& agent,
                                 const std::vector<std::string>& others) const {
    std::vector<std::string> result = {command};
    for (const std::string& word : {std::string("--ca"), tls_.authority, std::string("--cert"),
                                    tls_.certificate, std::string("--key"), tls_.key, agent}) {
      result.push_back(word);
    }
    result.insert(result.end(), others.begin(), others.end());
    return result;
  }

  control::test::Credentials credentials_;
  control::TlsFiles tls_ = credentials_.issue({.role = "operator", .common_name = "alice"});
  std::vector<proto::Envelope> requests_;
};

TEST_F(Ask, CancelNamesTheMigration) {
  const Finished finished = ask({answer_with(cancelled())}, "cancel", {kOne});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr(std::string(kOne) + " is cancelled"));
  ASSERT_EQ(requests_.size(), 1U);
  EXPECT_EQ(requests_[0].cancel_request().migration_id(), bytes(kOne));
}

TEST_F(Ask, EncryptedKeyIsAnErrorWithoutAPrompt) {
  gcr::test::write_private_file(tls_.key,
                                gcr::test::encrypted(credentials_.authority().issue().key));
  const Finished finished = run_cli(words("list", "127.0.0.1:1", {}));
  EXPECT_EQ(finished.exit_status, 2);
  EXPECT_EQ(std::ranges::count(finished.err, '\n'), 1) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr(tls_.key + " is encrypted"));
}

TEST_F(Ask, CancelHasJsonToo) {
  const Finished finished = ask({answer_with(cancelled())}, "cancel", {kOne, "--json"});
  EXPECT_EQ(parsed(finished.out).fields().at("migration_id").string_value(), kOne);
}

TEST_F(Ask, PrefixOfAnIdIsEnough) {
  const Finished finished =
      ask({answer_with(list_of({known(kOne), known(kOther)})), answer_with(cancelled())}, "cancel",
          {"6F1C2D3E-0"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  ASSERT_EQ(requests_.size(), 2U);
  EXPECT_TRUE(requests_[0].list_request().finished());
  EXPECT_EQ(requests_[1].cancel_request().migration_id(), bytes(kOne));
}

TEST_F(Ask, BothRolesAreOneMigration) {
  const Finished finished =
      ask({answer_with(list_of({known(kOne), known(kOne)})), answer_with(cancelled())}, "cancel",
          {"6f1c2d3e"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
}

TEST_F(Ask, AmbiguousPrefixListsTheIds) {
  const Finished finished =
      ask({answer_with(list_of({known(kOne), known(kOther)}))}, "status", {"6f1c2d3e"});
  EXPECT_EQ(finished.exit_status, 3);
  EXPECT_THAT(finished.err, HasSubstr(std::string(kOne) + " " + kOther));
}

TEST_F(Ask, UnknownPrefixIsNotFound) {
  const Finished finished = ask({answer_with(list_of({known(kOne)}))}, "status", {"7f1c2d3e"});
  EXPECT_EQ(finished.exit_status, 3);
  EXPECT_THAT(finished.err, HasSubstr("has no migration whose id begins with 7f1c2d3e"));
}

TEST_F(Ask, StatusPrintsAllFields) {
  const Finished finished = ask({answer_with(status_of(known(kOne)))}, "status", {kOne});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  for (const char* part : {kOne, "undone", "4711         37  node2:7411", "2023-11-14T22:13:20Z",
                           "python3 serve.py?[2J", "timeout: too slow"}) {
    EXPECT_THAT(finished.out, HasSubstr(part));
  }
  EXPECT_THAT(finished.out, testing::Not(HasSubstr("operator is needed")));
}

TEST_F(Ask, WatchPrintsChangesUntilTheEnd) {
  const Play at_work = answer_with(status_of(working()));
  const Finished finished =
      ask({at_work, at_work, answer_with(status_of(known(kOne)))}, "status", {kOne, "--watch"});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, testing::ContainsRegex("working(.|\n)*undone"));
  EXPECT_EQ(finished.out.find("working"), finished.out.rfind("working")) << finished.out;
  EXPECT_EQ(requests_.size(), 3U);
}

TEST_F(Ask, WatchRedrawsInPlaceOnATerminal) {
  const Play at_work = answer_with(status_of(working()));
  FakeAgent agent(credentials_.context({}),
                  {at_work, at_work, answer_with(status_of(known(kOne)))});
  const gcr::test::Terminal terminal(
      100, 24, cli_words(words("status", agent.address(), {kOne, "--watch"})), {});
  EXPECT_TRUE(terminal.wait_for("working"));
  EXPECT_EQ(terminal.finish(), 0);
  EXPECT_THAT(terminal.screen(), HasSubstr("undone"));
  EXPECT_THAT(terminal.screen(), testing::Not(HasSubstr("working")));
}

TEST_F(Ask, StatusReportsThatAnOperatorIsNeeded) {
  proto::MigrationStatus in_doubt = known(kOne);
  in_doubt.set_operator_needed(true);
  const Finished finished = ask({answer_with(status_of(in_doubt))}, "status", {kOne});
  EXPECT_THAT(finished.out, HasSubstr("an operator is needed"));
}

TEST_F(Ask, ListHasFinishedOnesOnlyOnRequest) {
  EXPECT_EQ(ask({answer_with(list_of({}))}, "list", {}).out, "no migrations\n");
  EXPECT_FALSE(requests_.at(0).list_request().finished());
  const Finished all = ask({answer_with(list_of({known(kOne), known(kOther)}))}, "list", {"--all"});
  EXPECT_TRUE(requests_.at(0).list_request().finished());
  EXPECT_THAT(all.out, HasSubstr(kOne));
  EXPECT_THAT(all.out, HasSubstr(kOther));
}

TEST_F(Ask, ListHasJsonToo) {
  const Finished finished = ask({answer_with(list_of({known(kOne)}))}, "list", {"--json"});
  const auto object = parsed(finished.out);
  const auto& list = object.fields().at("migrations").list_value();
  ASSERT_EQ(list.values_size(), 1);
  const auto& fields = list.values(0).struct_value().fields();
  EXPECT_EQ(fields.at("migration_id").string_value(), kOne);
  EXPECT_EQ(fields.at("state").string_value(), "undone");
  EXPECT_EQ(fields.at("processes").number_value(), 37);
  EXPECT_TRUE(fields.at("finished").bool_value());
  EXPECT_FALSE(fields.at("operator_needed").bool_value());
}

template <class Message>
void add_use(Message& user, int gib) {
  proto::GpuUse& use = *user.add_gpus();
  use.set_uuid(bytes(kOther));
  use.set_vram_bytes(std::uint64_t(gib) << 30);
}

/// One job, of a launcher, two processes with GPUs and four others.
proto::Envelope host_with_one_job() {
  proto::Envelope message;
  proto::HostReply& host = *message.mutable_host_reply();
  proto::Gpu& gpu = *host.mutable_host()->add_gpus();
  gpu.set_uuid(bytes(kOther));
  gpu.set_name("H200");
  gpu.set_total_bytes(151'397'597'184);
  gpu.set_free_bytes(std::uint64_t{100} << 30);
  for (const int pid : {4711, 4712}) {
    proto::GpuProcess& process = *host.add_processes();
    process.set_pid(pid);
    process.set_start_time(5'125'290);
    process.set_command("python3 serve.py\x1b[2J");
    process.set_uid(1001);
    process.set_migration_id(bytes(kOne));
    process.set_job(4700);
    add_use(process, 40);
  }
  proto::HostJob& job = *host.add_jobs();
  job.set_pid(4700);
  job.set_start_time(5'125'000);
  job.set_command("torchrun serve.py\x1b[2J");
  job.set_user("alice");
  job.set_processes(7);
  job.set_gpu_processes(2);
  job.set_migration_id(bytes(kOne));
  add_use(job, 80);
  *host.add_migrations() = known(kOne);
  host.set_max_migrations(16);
  host.set_load(0.5);
  return message;
}

TEST_F(Ask, HostIsPrintedAsTables) {
  const Finished finished = ask({answer_with(host_with_one_job())}, "host", {});
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("load 0.50 per core"));
  EXPECT_THAT(finished.out, HasSubstr(std::string("GPU-") + kOther + "      100 GiB"));
  EXPECT_THAT(finished.out, HasSubstr("H200 (not for arriving processes)"));
  EXPECT_THAT(finished.out, HasSubstr("   4700  alice                 7     1       80 GiB"));
  EXPECT_THAT(finished.out, HasSubstr("   4711  1001                        1       40 GiB"));
  EXPECT_THAT(finished.out, HasSubstr("  torchrun serve.py?[2J\n   4711 "));
  EXPECT_THAT(finished.out, testing::Not(HasSubstr("\x1b")));
  ASSERT_EQ(requests_.size(), 1U);
  EXPECT_TRUE(requests_[0].has_host_request());
}

TEST_F(Ask, JobOfOneProcessIsOneRow) {
  proto::Envelope message = host_with_one_job();
  proto::HostReply& host = *message.mutable_host_reply();
  host.mutable_processes()->RemoveLast();
  host.mutable_processes(0)->set_job(4711);
  host.mutable_jobs(0)->set_pid(4711);
  host.mutable_jobs(0)->set_processes(1);
  host.clear_migrations();
  const std::string out = ask({answer_with(message)}, "host", {}).out;
  EXPECT_NE(out.find(" 4711 "), std::string::npos);
  EXPECT_EQ(out.find(" 4711 "), out.rfind(" 4711 ")) << out;
}

TEST_F(Ask, HostHasJsonWithBytesAsNumbers) {
  const Finished finished = ask({answer_with(host_with_one_job())}, "host", {"--json"});
  EXPECT_THAT(finished.out, HasSubstr("\"total_bytes\":151397597184"));
  const auto object = parsed(finished.out);
  const auto& fields = object.fields();
  EXPECT_EQ(fields.at("schema").number_value(), 1);
  EXPECT_EQ(fields.at("load").number_value(), 0.5);
  const auto& process = fields.at("processes").list_value().values(0).struct_value().fields();
  EXPECT_EQ(process.at("pid").number_value(), 4711);
  EXPECT_EQ(process.at("start_time").number_value(), 5'125'290);
  EXPECT_EQ(process.at("migration_id").string_value(), kOne);
  EXPECT_EQ(process.at("job").number_value(), 4700);
  const auto& use = process.at("gpus").list_value().values(0).struct_value().fields();
  EXPECT_EQ(use.at("uuid").string_value(), std::string("GPU-") + kOther);
  EXPECT_EQ(use.at("vram_bytes").number_value(), static_cast<double>(std::uint64_t{40} << 30));
  EXPECT_EQ(fields.at("migrations").list_value().values_size(), 1);
}

TEST_F(Ask, HostHasJobsInJson) {
  const auto object = parsed(ask({answer_with(host_with_one_job())}, "host", {"--json"}).out);
  const auto& list = object.fields().at("jobs").list_value();
  ASSERT_EQ(list.values_size(), 1);
  const auto& job = list.values(0).struct_value().fields();
  EXPECT_EQ(job.at("pid").number_value(), 4700);
  EXPECT_EQ(job.at("start_time").number_value(), 5'125'000);
  EXPECT_EQ(job.at("user").string_value(), "alice");
  EXPECT_EQ(job.at("processes").number_value(), 7);
  EXPECT_EQ(job.at("gpu_processes").number_value(), 2);
  EXPECT_EQ(job.at("migration_id").string_value(), kOne);
  const auto& use = job.at("gpus").list_value().values(0).struct_value().fields();
  EXPECT_EQ(use.at("vram_bytes").number_value(), static_cast<double>(std::uint64_t{80} << 30));
}

TEST_F(Ask, EmptyHostHasEmptyLists) {
  proto::Envelope nothing;
  nothing.mutable_host_reply();
  const auto object = parsed(ask({answer_with(nothing)}, "host", {"--json"}).out);
  for (const char* list : {"gpus", "processes", "jobs", "migrations"}) {
    EXPECT_EQ(object.fields().at(list).list_value().values_size(), 0) << list;
  }
}

proto::Envelope resolved() {
  proto::Envelope message;
  message.mutable_resolve_reply()->set_text("the process runs here");
  *message.mutable_resolve_reply()->mutable_status() = known(kOne);
  return message;
}

TEST_F(Ask, ResolvePrintsTheDecisionAndItsEffect) {
  const Finished run =
      ask({answer_with(resolved())}, "resolve", {kOne, "--run-here", "--peer-is-gone"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("the process runs here\n"));
  EXPECT_EQ(requests_.at(0).resolve_request().decision(), proto::ResolveRequest::RUN_HERE);
  EXPECT_TRUE(requests_.at(0).resolve_request().peer_is_gone());
  ask({answer_with(resolved())}, "resolve", {kOne, "--discard-here", "--peer-is-gone"});
  EXPECT_EQ(requests_.at(0).resolve_request().decision(), proto::ResolveRequest::DISCARD_HERE);
}

TEST_F(Ask, ResolveHasJsonToo) {
  const Finished finished =
      ask({answer_with(resolved())}, "resolve", {kOne, "--run-here", "--peer-is-gone", "--json"});
  const auto object = parsed(finished.out);
  EXPECT_EQ(object.fields().at("text").string_value(), "the process runs here");
  const auto& status = object.fields().at("status").struct_value();
  EXPECT_EQ(status.fields().at("migration_id").string_value(), kOne);
}

TEST_F(Ask, RefusalIsOneErrorLine) {
  const std::pair<Code, int> refusals[] = {
      {Code::kRefused, 3}, {Code::kNotFound, 3}, {Code::kTimeout, 4}, {Code::kPermissionDenied, 5}};
  for (const auto& [code, exit_status] : refusals) {
    const Finished finished = ask({fail(Error(code, "not now"))}, "cancel", {kOne});
    EXPECT_EQ(finished.exit_status, exit_status);
    EXPECT_EQ(finished.err, "gcr-migrate: not now\n");
    EXPECT_EQ(finished.out, "");
  }
}

TEST_F(Ask, UnreachableAgentIsAnError) {
  const std::string closed = control::test::Loopback().endpoint().to_string();
  const Finished finished = run_cli(words("list", closed, {}));
  EXPECT_EQ(finished.exit_status, 4);
  EXPECT_THAT(finished.err, HasSubstr("cannot reach the agent at " + closed));
}

}  // namespace
}  // namespace gcr::cli::test
