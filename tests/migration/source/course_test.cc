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
#include <condition_variable>
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
    const auto find_target = [this](const Claimed&) -> Result<std::unique_ptr<Target>> {
      if (no_target_) return *no_target_;
      return std::make_unique<test::FakeTarget>(target_);
    };
    course_.reset(new Course{{*context_, *console_}, find_target, request});
    introduce(*course_);
    loopback_.io().restart();
    guard_.emplace(asio::make_work_guard(loopback_.io()));
    io_thread_ = std::thread([this] { loopback_.io().run(); });
    daemon_thread_ = std::thread([this] { serve_as_daemon(); });
  }

  ~CourseTest() override {
    claimed_.reset();
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

  void claim_it() {
    auto claimed = claim(*course_);
    ASSERT_TRUE(claimed) << claimed.error().message();
    claimed_.reset(new Claimed(std::move(*claimed)));
  }

  /// A source that is ready to request the restore, of a process without buffers.
  void begin_and_copy() {
    claim_it();
    const Status begun = begin_journal(course_->run);
    ASSERT_TRUE(begun) << begun.error().message();
  }

  /// Asks for the vote in the order of finish().
  Result<Vote> vote() {
    GCR_TRY(await_vote(course_->run));
    return ask_for_vote(*claimed_, Sent());
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
  std::unique_ptr<Claimed> claimed_;
  std::thread io_thread_, daemon_thread_;
};

TEST_F(CourseTest, TargetGetsTheMigrationIdAndTheRequester) {
  claim_it();
  EXPECT_TRUE(preflight(*claimed_, {}));
  EXPECT_EQ(target_.preflight_request.migration_id(), to_bytes(course_->run.migration));
  EXPECT_EQ(target_.preflight_request.ordered_by(), agent_->peer().common_name);
}

TEST_F(CourseTest, BlockerAtTheTargetRefusesTheMigration) {
  claim_it();
  *target_.preflight_reply->add_findings() =
      findings::make_finding(findings::kMemoryTooSmall, findings::Side::kDestination, "it is so");
  const Status refused = preflight(*claimed_, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_THAT(refused.error().message(), HasSubstr("it is so"));
}

TEST_F(CourseTest, AbortIsSentToTheTarget) {
  claim_it();
  const Error reason =
      give_up(*course_, {claimed_.get()}, Error(Code::kRefused, "it does not fit"));
  EXPECT_EQ(reason.message(), "it does not fit");
  EXPECT_EQ(target_.aborted, "it does not fit");
}

TEST_F(CourseTest, CancellationInterruptsTheTarget) {
  claim_it();
  EXPECT_FALSE(target_.interrupted());
  cancellation_.request("alice said so");
  ASSERT_TRUE(target_.interrupted());
  EXPECT_EQ(target_.interrupted()->message(), "alice said so");
}

TEST_F(CourseTest, EarlyCancellationInterruptsTheTarget) {
  cancellation_.request("alice said so");
  claim_it();
  EXPECT_TRUE(target_.interrupted());
}

TEST_F(CourseTest, CancelledMigrationSendsNoRequests) {
  cancellation_.request("alice said so");
  migrate(*course_);
  EXPECT_EQ(course_->run.report.code(), "cancelled");
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
  EXPECT_FALSE(vote());
  EXPECT_TRUE(last_record().has_awaiting());
  EXPECT_THAT(target_.calls, ElementsAre("restore"));
}

TEST_F(CourseTest, VoteOnOtherChunksIsDataLoss) {
  begin_and_copy();
  target_.vote->set_verified_chunks(7);
  const auto restored = vote();
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code(), Code::kDataLoss);
  EXPECT_FALSE(course_->run.report.verified());
}

TEST_F(CourseTest, PhasesOfTheVoteUseTheReportsClock) {
  begin_and_copy();
  proto::PhaseTime& phase = *target_.vote->add_phases();
  const auto start = console_->started().time_since_epoch();
  phase.set_start_ms(in_milliseconds(start) + 1500);
  ASSERT_TRUE(vote());
  EXPECT_TRUE(course_->run.report.verified());
  ASSERT_EQ(course_->run.report.phases_size(), 1);
  EXPECT_NEAR(course_->run.report.phases(0).start_ms(), 1500, 0.01);
}

/// A wait that is longer than each test takes.
constexpr std::chrono::hours kLong{1};

TEST_F(CourseTest, EarlySwitchoverOrderEndsTheWait) {
  EXPECT_TRUE(console_->go_on());
  EXPECT_FALSE(console_->sleep_unless_ordered(kLong));
  EXPECT_TRUE(console_->may_switch_over());
  const Status again = console_->go_on();
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message(), "the migration was already told to switch over");
}

TEST_F(CourseTest, CancellationEndsTheWait) {
  std::thread other([this] { cancellation_.request("alice said so"); });
  EXPECT_FALSE(console_->sleep_unless_ordered(kLong));
  other.join();
  EXPECT_FALSE(console_->may_switch_over());
  EXPECT_THAT(console_->go_on().error().message(), HasSubstr("alice said so"));
}

TEST_F(CourseTest, WaitEndsWithoutAnOrder) {
  EXPECT_TRUE(console_->sleep_unless_ordered(std::chrono::milliseconds(1)));
}

TEST_F(CourseTest, ReportIncludesTheVote) {
  begin_and_copy();
  proto::RestoreReply reply;
  reply.set_prefilled(true);
  reply.add_notes("landed in ordinary pages");
  reply.set_stored_bytes(7);
  target_.vote = reply;
  ASSERT_TRUE(vote());
  EXPECT_TRUE(course_->run.report.prefilled());
  EXPECT_EQ(course_->run.report.stored_bytes(), 7U);
  EXPECT_THAT(course_->run.report.notes(), ElementsAre("landed in ordinary pages"));
}

TEST_F(CourseTest, FewerVerifiedChunksThanSentAreDataLoss) {
  begin_and_copy();
  Sent sent;
  sent.request.add_digests()->set_digests(std::string(3 * sizeof(digest::Digest), 'd'));
  proto::RestoreReply reply;
  reply.set_verified_chunks(2);
  target_.vote = reply;
  const auto vote = ask_for_vote(*claimed_, sent);
  ASSERT_FALSE(vote);
  EXPECT_EQ(vote.error().code(), Code::kDataLoss);
  EXPECT_THAT(vote.error().message(), HasSubstr("2 of 3 chunks"));
}

/// What a run says whose undo failed. A recovery goes on with it.
std::string after_failed_undo(Run& run) {
  const Error left =
      undone(run, Error(Code::kTimeout, "it took too long"), Error(Code::kIo, "the disk is full"));
  EXPECT_TRUE(run.recovering);
  return left.message();
}

TEST_F(CourseTest, FailedUndoOfAMigrationIsOneOfItsSource) {
  EXPECT_EQ(after_failed_undo(course_->run),
            "it took too long; the process could not be resumed at the source yet, and the agent "
            "keeps trying: the disk is full");
}

TEST_F(CourseTest, FailedUndoOfARestoreNamesNoSource) {
  course_->run.began.set_loads(true);
  EXPECT_EQ(after_failed_undo(course_->run),
            "it took too long; the restore could not be undone yet, and the agent keeps trying: "
            "the disk is full");
}

class CommitTest : public CourseTest {
 protected:
  /// A source that has received the vote.
  void SetUp() override {
    begin_and_copy();
    ASSERT_TRUE(await_vote(course_->run));
  }

  Result<proto::CommitReply> commit_with(
      Result<commit::CommitAnswer> answer, std::function<void()> on_commit = [] {}) {
    target_.answer = std::move(answer);
    test::FakeTarget target(target_);
    target_.on_commit = std::move(on_commit);
    return migration::commit(course_->run, target, Vote(),
                             {nullptr,
                              [this](const Error& cause) {
                                undone_ = true;
                                return cause;
                              }},
                             {});
  }

  bool undone_ = false;
};

TEST_F(CommitTest, LostCopyIsNoCommit) {
  const auto done = commit_with(commit::CommitAnswer(Error(Code::kNotFound, "the copy is lost")));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message(), "the copy is lost");
  EXPECT_FALSE(course_->run.committed());
  EXPECT_TRUE(undone_);
}

/// The journal cannot be written, as on a full disk; a recovery will ask again.
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
  EXPECT_TRUE(course_->run.committed());
  EXPECT_FALSE(undone_);
}

/// A channel on which every write waits until it is cancelled.
class SendBothTest : public CourseTest {
 protected:
  Status until_cancelled() {
    std::unique_lock lock(mutex_);
    const bool ended = cancelled_.wait_for(lock, kPatience, [this] { return is_cancelled_; });
    return Error(ended ? Code::kCancelled : Code::kTimeout, "the channel");
  }
  void SetUp() override {
    target_.on_cancel = [this] {
      const std::lock_guard lock(mutex_);
      is_cancelled_ = true;
      cancelled_.notify_all();
    };
  }
  static Status fails() { return Error(Code::kDataLoss, "it failed first"); }

  std::mutex mutex_;
  std::condition_variable cancelled_;
  bool is_cancelled_ = false;
};

TEST_F(SendBothTest, FailureOfImagesEndsVramAndIsReported) {
  test::FakeTarget target(target_);
  const Status sent = send_both(
      target, [this] { return until_cancelled(); }, fails);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().message(), "it failed first");
}

TEST_F(SendBothTest, FailureOfVramEndsImagesAndIsReported) {
  test::FakeTarget target(target_);
  const Status sent = send_both(target, fails, [this] { return until_cancelled(); });
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().message(), "it failed first");
}

TEST_F(SendBothTest, ReasonFromTheTargetIsReportedInsteadOfItsBrokenChannel) {
  test::FakeTarget target(target_);
  const Status sent = send_both(
      target, [] { return Status(Error(Code::kUnavailable, "connection reset")); },
      [this] {
        (void)until_cancelled();
        return Status(Error(Code::kResourceExhausted, "the destination has no memory left"));
      });
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().message(), "the destination has no memory left");
}

}  // namespace
}  // namespace gcr::migration::source
