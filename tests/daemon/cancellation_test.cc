#include "migrate-agent/worker/runtime/cancellation.h"

#include <gtest/gtest.h>

#include <thread>

namespace gcr::daemon {
namespace {

TEST(Cancellation, IsNotSetUntilRequested) {
  worker::Cancellation cancellation;
  EXPECT_FALSE(cancellation.requested());
  EXPECT_TRUE(cancellation.check());
}

TEST(Cancellation, KeepsItsFirstReason) {
  worker::Cancellation cancellation;
  cancellation.request("first");
  cancellation.request("second");
  const Status checked = cancellation.check();
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), Code::kCancelled);
  EXPECT_EQ(checked.error().message(), "first");
}

TEST(Cancellation, EveryCallbackRunsOnce) {
  worker::Cancellation cancellation;
  int calls = 0;
  const auto one = cancellation.on_request([&] { ++calls; });
  const auto two = cancellation.on_request([&] { ++calls; });
  std::thread([&] { cancellation.request("why"); }).join();
  cancellation.request("again");
  EXPECT_EQ(calls, 2);
}

TEST(Cancellation, LateCallbackRunsAtOnce) {
  worker::Cancellation cancellation;
  cancellation.request("why");
  bool called = false;
  const auto late = cancellation.on_request([&] { called = true; });
  EXPECT_TRUE(called);
}

TEST(Cancellation, RemovedCallbackDoesNotRun) {
  worker::Cancellation cancellation;
  bool called = false;
  {
    auto first = cancellation.on_request([&] { called = true; });
    const auto moved = std::move(first);
  }
  cancellation.request("why");
  EXPECT_FALSE(called);
}

TEST(Cancellation, CallbackMayRemoveItselfAndOthers) {
  worker::Cancellation cancellation;
  int calls = 0;
  worker::Cancellation::Registration own;
  worker::Cancellation::Registration other;
  const auto leave = [&] {
    ++calls;
    own = {};
    other = {};
  };
  own = cancellation.on_request(leave);
  other = cancellation.on_request(leave);  // the one that runs first
  cancellation.request("why");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace gcr::daemon
