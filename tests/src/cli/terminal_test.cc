// The live display, on a terminal.
#include "tests/support/terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <sstream>

#include "tests/src/cli/migrate_fixture.h"

namespace gcr::cli::test {
namespace {

using control::ControlChannel;
using control::test::kPatience;
using gcr::test::Terminal;
using testing::HasSubstr;
using testing::Not;

/// Sends progress until the operator cancels, which is reported as a failure.
struct Showing {
  bool cancelled = false;

  asio::awaitable<void> show(ControlChannel& channel) {
    asio::steady_timer pause(co_await asio::this_coro::executor);
    while (!cancelled) {
      co_await send_progress(channel, example_progress());
      pause.expires_after(std::chrono::milliseconds(30));
      co_await pause.async_wait(asio::use_awaitable);
    }
  }
  asio::awaitable<void> listen(ControlChannel& channel) {
    const auto message = co_await channel.receive(kPatience);
    EXPECT_TRUE(message && message->has_cancel_request());
    cancelled = true;
  }
};

asio::awaitable<void> show_until_cancelled(ControlChannel& channel) {
  using asio::experimental::awaitable_operators::operator&&;
  co_await send_started(channel);
  co_await send_event(channel);
  Showing showing;
  co_await (showing.show(channel) && showing.listen(channel));
  proto::MigrateReport report;
  report.set_code("cancelled");
  report.set_message("the operator cancelled it");
  report.set_source_touched(true);
  co_await send_report(channel, report);
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

class LiveDisplay : public Migrate {
 protected:
  Terminal start(unsigned columns, const std::vector<std::string>& environment = {}) {
    agent_ = std::make_unique<FakeAgent>(credentials_.context({}), show_until_cancelled);
    return Terminal(columns, 24, cli_words(words(agent_->address())), environment);
  }

  std::unique_ptr<FakeAgent> agent_;
};

TEST_F(LiveDisplay, ShowsTheState) {
  const Terminal terminal = start(100);
  ASSERT_TRUE(terminal.wait_for("downtime about 420 ms"));
  const std::string screen = terminal.screen();
  EXPECT_THAT(screen, HasSubstr("migration " + std::string(kExampleId) + "\n"));
  EXPECT_THAT(screen, HasSubstr("switchover: closing the gate?[2J\n"));
  EXPECT_THAT(screen, HasSubstr("precopy    round 3   [##########"));
  EXPECT_THAT(screen, HasSubstr("----------]  50 %\n"));
  EXPECT_THAT(screen, HasSubstr("  512 MiB of 1 GiB, 1.25 GB/s, dirtied at 310 MB/s, throttled 20 "
                                "%, downtime about 420 ms\n  3.1 s left, 12.5 s so far\n"));
  terminal.press("C-c");
  EXPECT_EQ(terminal.finish(), 7);
}

TEST_F(LiveDisplay, IsErasedAtTheEndWithTheEchoOfCtrlC) {
  const Terminal terminal = start(100);
  ASSERT_TRUE(terminal.wait_for("downtime about"));
  terminal.press("C-c");
  ASSERT_EQ(terminal.finish(), 7);
  const std::string all = terminal.screen(true);
  EXPECT_THAT(all, HasSubstr("cancel: asking the agent to cancel"));
  EXPECT_THAT(all, HasSubstr("the process runs on at the source\n"));
  EXPECT_THAT(all, Not(HasSubstr("downtime about")));
  EXPECT_THAT(all, Not(HasSubstr("^C")));
}

TEST_F(LiveDisplay, FitsNarrowAndResizedTerminals) {
  const Terminal terminal = start(100);
  ASSERT_TRUE(terminal.wait_for("downtime about"));
  for (const unsigned columns : {40U, 24U, 77U, 30U, 120U}) {
    terminal.resize(columns, 24);
    const auto is_drawn_anew = [&](const std::string& screen) {
      std::istringstream lines(screen);
      std::size_t widest = 0, drawn = 0;
      for (std::string line; std::getline(lines, line);) {
        if (line.find("round 3") != std::string::npos) ++drawn;
        if (drawn > 0) widest = std::max(widest, line.size());
      }
      // One display and no rest of an older one, which wraps to the last column or is too long.
      return drawn == 1 && widest < columns && count(screen, "so far") == 1 &&
             count(screen, "dirtied at") == 1;
    };
    EXPECT_TRUE(terminal.wait_for(is_drawn_anew)) << columns << " columns\n" << terminal.screen();
  }
  terminal.press("C-c");
  EXPECT_EQ(terminal.finish(), 7);
}

TEST_F(LiveDisplay, HasColoursUnlessDisabled) {
  for (const bool wanted : {true, false}) {
    const Terminal terminal = start(100, {wanted ? "NO_COLOR=" : "NO_COLOR=1"});
    std::string screen;
    ASSERT_TRUE(terminal.wait_for([&](const std::string&) {
      screen = terminal.screen_with_colours();  // the whole display
      return screen.find('[') != std::string::npos && screen.find("so far") != std::string::npos;
    }));
    EXPECT_EQ(count(screen, "\x1b[32m") > 0, wanted) << screen;
    terminal.press("C-c");
    EXPECT_EQ(terminal.finish(), 7);
  }
}

}  // namespace
}  // namespace gcr::cli::test
