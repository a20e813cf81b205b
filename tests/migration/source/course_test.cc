// The source's course as far as it needs no GPU process: its requests to the target, its reaction
// to the replies, and concurrent orders of operators.
#include "migrate-agent/migration/source/course.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <csignal>
#include <filesystem>
#include <thread>

#include "migrate-agent/worker/runtime/packet.h"
#include "src/base/units.h"
#include "tests/migration/source/fake_target.h"
#include "tests/src/control/peers.h"

namespace gcr::migration::source {
namespace {

using control::test::kPatience;
using testing::ElementsAre;
using testing::HasSubstr;

class CourseTest : public testing::Test {
 protected:
  CourseTest() {
    std::string folder = "/tmp/gcr-course-test-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no folder");
    config_.state_dir = folder + "/state";
    config_.runtime_dir = folder + "/run";
    folder_ = folder;
    auto [agent, client] = loopback_.connect_both(credentials_.context({}),
                                                  credentials_.context({.role = "operator"}));
    agent_ = std::move(*agent);
    operator_ = std::move(*client);
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::runtime_error("no socket pair");
    }
    daemon_end_.reset(ends[0]);
    daemon_.emplace(loopback_.io(), UniqueFd(ends[1]));
    line_.emplace(loopback_.io(), config_, cancellation_, *daemon_);
    context_.emplace(worker::WorkerContext{
        {loopback_.io(), pool_, config_, *daemon_, nullptr, cancellation_, *line_},
        *agent_,
        worker::Permissions::of({"alice", false, true, std::nullopt}, {})});
    proto::MigrateRequest request;
    request.set_pid(::getpid());
    request.set_destination("fake:1");
    request.set_pause_before_switchover(true);
    console_.emplace(*context_, request);
    const auto find_target = [this](const Course&) -> Result<std::unique_ptr<Target>> {
      if (no_target_) return *no_target_;
      return std::make_unique<test::FakeTarget>(target_);
    };
    course_.reset(new Course{{*context_, *console_}, find_target, request});
    loopback_.io().restart();
    guard_.emplace(asio::make_work_guard(loopback_.io()));
    io_thread_ = std::thread([this] { loopback_.io().run(); });
    daemon_thread_ = std::thread([this] { serve_as_daemon(); });
  }

  ~CourseTest() override {
    course_.reset();
    guard_.reset();
    const Status closed =
        worker::on_io(loopback_.io(), [](CourseTest& self) -> asio::awaitable<Status> {
          self.console_.reset();
          self.line_.reset();
          self.daemon_.reset();
          self.agent_->close();
          self.operator_->close();
          co_return Status();
        }(*this));
    EXPECT_TRUE(closed);
    io_thread_.join();
    daemon_thread_.join();
    std::filesystem::remove_all(folder_);
  }

  /// Grants every claim until the worker's end is closed.
  void serve_as_daemon() {
    for (;;) {
      pollfd poll{daemon_end_.get(), POLLIN, 0};
      ::poll(&poll, 1, -1);
      const auto packet = worker::receive_packet(daemon_end_.get());
      if (!packet || (*packet && (*packet)->bytes.empty())) return;
      registry::FromWorker message;
      if (!*packet || !message.ParseFromString((*packet)->bytes)) continue;
      if (message.sequence() == 0) continue;
      registry::FromDaemon answer;
      answer.mutable_answer()->set_sequence(message.sequence());
      EXPECT_TRUE(worker::send_packet(daemon_end_.get(), answer, -1, worker::Wait::kYes));
    }
  }

  /// As after claim() and examine().
  void claim_and_examine() {
    ASSERT_TRUE(claim(*course_));
    course_->subject.found.emplace();
  }

  /// As before the request to restore, with a process without buffers.
  void begin_and_copy() {
    ASSERT_TRUE(claim(*course_));
    auto log =
        commit::SourceLog::create(config_.state_dir, course_->run.migration, description(*course_));
    ASSERT_TRUE(log) << log.error().message();
    course_->run.log.emplace(std::move(*log));
    course_->copying.vram.emplace(nullptr, digest::DigestKey::expand(std::array<std::byte, 32>{}));
  }

  const journal::Record& last_record() const {
    return course_->run.log->journal().records().back();
  }

  worker::Config config_;
  std::filesystem::path folder_;
  control::test::Credentials credentials_;
  control::test::Loopback loopback_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> guard_;
  asio::thread_pool pool_{1};
  std::unique_ptr<control::ControlChannel> agent_, operator_;
  UniqueFd daemon_end_;
  std::optional<worker::DaemonClient> daemon_;
  worker::Cancellation cancellation_;
  std::optional<worker::WorkerServer> line_;
  std::optional<worker::WorkerContext> context_;
  std::optional<Console> console_;
  test::FakeTargetState target_;
  std::optional<Error> no_target_;
  std::unique_ptr<Course> course_;
  std::thread io_thread_, daemon_thread_;
};

TEST_F(CourseTest, TargetGetsTheMigrationIdAndTheRequester) {
  claim_and_examine();
  EXPECT_TRUE(preflight(*course_));
  EXPECT_EQ(target_.preflight_request.migration_id(), to_bytes(course_->run.migration));
  EXPECT_EQ(target_.preflight_request.ordered_by(), agent_->peer().common_name);
}

TEST_F(CourseTest, BlockerAtTheTargetRefusesTheMigration) {
  claim_and_examine();
  *target_.preflight_reply->add_findings() =
      findings::make_finding(findings::kMemoryTooSmall, findings::Side::kDestination, "it is so");
  const Status refused = preflight(*course_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_THAT(refused.error().message(), HasSubstr("it is so"));
}

TEST_F(CourseTest, AbortIsSentToTheTarget) {
  claim_and_examine();
  const Status given_up = give_up(*course_, Error(Code::kRefused, "it does not fit"));
  EXPECT_EQ(given_up.error().message(), "it does not fit");
  EXPECT_EQ(target_.aborted, "it does not fit");
}

TEST_F(CourseTest, CancellationInterruptsTheTarget) {
  ASSERT_TRUE(claim(*course_));
  EXPECT_FALSE(target_.interrupted());
  cancellation_.request("alice said so");
  ASSERT_TRUE(target_.interrupted());
  EXPECT_EQ(target_.interrupted()->message(), "alice said so");
}

TEST_F(CourseTest, EarlyCancellationInterruptsTheTarget) {
  cancellation_.request("alice said so");
  ASSERT_TRUE(claim(*course_));
  EXPECT_TRUE(target_.interrupted());
}

TEST_F(CourseTest, CancelledMigrationSendsNoRequests) {
  cancellation_.request("alice said so");
  const Status voted = run_to_vote(*course_);
  ASSERT_FALSE(voted);
  EXPECT_EQ(voted.error().code(), Code::kCancelled);
  EXPECT_THAT(target_.calls, ElementsAre());
}

TEST_F(CourseTest, UnknownTargetIsReported) {
  no_target_ = Error(Code::kInvalidArgument, "that is no address");
  migrate(*course_);
  EXPECT_EQ(course_->run.report.code(), "invalid-argument");
  EXPECT_EQ(course_->run.report.message(), "that is no address");
}

TEST_F(CourseTest, RestoreIsJournaledBeforeItIsRequested) {
  begin_and_copy();
  target_.vote = Error(Code::kInternal, "it did not work");
  EXPECT_FALSE(restore(*course_));
  EXPECT_TRUE(last_record().has_awaiting());
  EXPECT_THAT(target_.calls, ElementsAre("restore"));
}

TEST_F(CourseTest, VoteOnOtherChunksIsDataLoss) {
  begin_and_copy();
  target_.vote->set_verified_chunks(7);
  const Status restored = restore(*course_);
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code(), Code::kDataLoss);
  EXPECT_FALSE(course_->run.report.verified());
}

TEST_F(CourseTest, PhasesOfTheVoteUseTheReportsClock) {
  begin_and_copy();
  proto::PhaseTime& phase = *target_.vote->add_phases();
  const auto start = console_->started().time_since_epoch();
  phase.set_start_ms(in_milliseconds(start) + 1500);
  ASSERT_TRUE(restore(*course_));
  EXPECT_TRUE(course_->run.report.verified());
  ASSERT_EQ(course_->run.report.phases_size(), 1);
  EXPECT_NEAR(course_->run.report.phases(0).start_ms(), 1500, 0.01);
}

/// Longer than each test takes.
constexpr std::chrono::hours kLong{1};

TEST_F(CourseTest, EarlySwitchoverOrderEndsTheWait) {
  EXPECT_TRUE(console_->go_on());
  EXPECT_FALSE(console_->rest(kLong));
  EXPECT_TRUE(console_->may_switch_over());
  const Status again = console_->go_on();
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message(), "the migration switches over already");
}

TEST_F(CourseTest, CancellationEndsTheWait) {
  std::thread other([this] { cancellation_.request("alice said so"); });
  EXPECT_FALSE(console_->rest(kLong));
  other.join();
  EXPECT_FALSE(console_->may_switch_over());
  EXPECT_THAT(console_->go_on().error().message(), HasSubstr("alice said so"));
}

TEST_F(CourseTest, WaitEndsWithoutAnOrder) {
  EXPECT_TRUE(console_->rest(std::chrono::milliseconds(1)));
}

TEST_F(CourseTest, ReportIncludesTheVote) {
  begin_and_copy();
  proto::RestoreReply vote;
  vote.set_prefilled(true);
  vote.add_notes("landed in ordinary pages");
  vote.set_stored_bytes(7);
  target_.vote = vote;
  test::FakeTarget target(target_);
  ASSERT_TRUE(migration::ask_for_vote(course_->run, target, {}, 0));
  EXPECT_TRUE(course_->run.report.prefilled());
  EXPECT_EQ(course_->run.report.stored_bytes(), 7U);
  EXPECT_THAT(course_->run.report.notes(), ElementsAre("landed in ordinary pages"));
}

class CommitTest : public CourseTest {
 protected:
  /// As after the vote.
  void SetUp() override {
    begin_and_copy();
    ASSERT_TRUE(await_vote(course_->run));
  }

  Result<proto::CommitReply> commit_with(
      Result<commit::CommitAnswer> answer, std::function<void()> answered = [] {}) {
    target_.answer = std::move(answer);
    test::FakeTarget target(target_);
    return migration::commit(course_->run, target,
                             {.give_up = [](Error cause) { return cause; },
                              .answered = std::move(answered),
                              .in_hand = {},
                              .went_back =
                                  [this](const Error& lost, const Status& undone) {
                                    undone_ = undone;
                                    return lost;
                                  },
                              .unconfirmed = {}});
  }

  std::optional<Status> undone_;
};

TEST_F(CommitTest, LostCopyIsNoCommit) {
  const auto done = commit_with(commit::CommitAnswer(Error(Code::kNotFound, "the copy is lost")));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message(), "the copy is lost");
  EXPECT_FALSE(course_->run.report.committed());
  ASSERT_TRUE(undone_);
}

/// As on a full disk: recovery will ask again.
TEST_F(CommitTest, UnrecordedLostCopyStaysCommitted) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto done =
      commit_with(commit::CommitAnswer(Error(Code::kNotFound, "the copy is lost")), [&before] {
        const rlimit none{0, before.rlim_max};
        EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
      });
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(done);
  EXPECT_TRUE(course_->run.report.committed());
  EXPECT_FALSE(undone_);
}

}  // namespace
}  // namespace gcr::migration::source
