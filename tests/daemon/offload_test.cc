#include "migrate-agent/worker/runtime/offload.h"

#include <gtest/gtest.h>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

namespace gcr::daemon {
namespace {

class Offload : public testing::Test {
 protected:
  template <class Work>
  std::invoke_result_t<Work&> run(Work work) {
    using Value = std::invoke_result_t<Work&>;
    std::optional<Value> value;
    asio::co_spawn(io_, store(std::move(work), value),
                   [](const std::exception_ptr& exception) { EXPECT_FALSE(exception); });
    io_.run();
    return std::move(*value);
  }

  template <class Work, class Value>
  asio::awaitable<void> store(Work work, std::optional<Value>& value) {
    Value result = co_await worker::offload(pool_, std::move(work));
    resumed_on_ = std::this_thread::get_id();
    value.emplace(std::move(result));
  }

  asio::io_context io_{1};
  asio::thread_pool pool_{2};
  std::thread::id resumed_on_;
};

TEST_F(Offload, WorkRunsInAnotherThread) {
  const auto ran_on = run([]() -> Result<std::thread::id> { return std::this_thread::get_id(); });
  ASSERT_TRUE(ran_on);
  EXPECT_NE(*ran_on, std::this_thread::get_id());
  EXPECT_EQ(resumed_on_, std::this_thread::get_id());
}

/// Neither copyable nor default-constructible, as handles are.
struct Handle {
  explicit Handle(int number) : value(std::make_unique<int>(number)) {}
  std::unique_ptr<int> value;
};

TEST_F(Offload, MoveOnlyResultsAreReturned) {
  const auto handle = run([]() -> Result<Handle> { return Handle(7); });
  ASSERT_TRUE(handle);
  EXPECT_EQ(*handle->value, 7);
}

TEST_F(Offload, ErrorsAreReturned) {
  const auto failed = run([]() -> Status { return Error(Code::kTimeout, "too slow"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kTimeout);
}

TEST_F(Offload, ExceptionsBecomeErrors) {
  const auto failed = run([]() -> Status { throw std::runtime_error("boom"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kInternal);
  EXPECT_EQ(failed.error().message(), "boom");
}

TEST_F(Offload, IoContextKeepsRunning) {
  std::promise<void> posted;
  asio::post(io_, [&] { posted.set_value(); });
  const auto waited = run([&]() -> Status {
    posted.get_future().wait();
    return {};
  });
  EXPECT_TRUE(waited);
}

}  // namespace
}  // namespace gcr::daemon
