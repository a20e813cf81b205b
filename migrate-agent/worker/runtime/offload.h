// Blocking work and coroutines: offload() runs a callable on a thread pool while the io_context
// continues; on_io() runs a coroutine from such a thread.
#pragma once

#include <asio/async_result.hpp>
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/this_coro.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>
#include <concepts>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "src/base/result.h"

namespace gcr::worker {

/// Returns the result of `work()`, a Result<T> or Status; an exception becomes an Error of
/// kInternal.
template <class Work>
std::invoke_result_t<Work&> guarded(Work&& work) {
  try {
    return work();
  } catch (const std::exception& exception) {
    return Error(Code::kInternal, exception.what());
  }
}

/// Returns guarded(work), which runs on a thread of `pool`; the coroutine resumes on its own
/// executor. Objects that `work` refers to must live until it has returned; the awaiting coroutine
/// does. Cancelling the coroutine does not interrupt `work`: the coroutine resumes only after
/// `work` has returned, so nothing is left running.
///
///   auto dumped = co_await offload(context.blocking, [&] { return criu::dump(...); });
template <class Work>
asio::awaitable<std::invoke_result_t<Work&>> offload(asio::thread_pool& pool, Work work) {
  using Value = std::invoke_result_t<Work&>;
  std::optional<Value> value;
  auto executor = co_await asio::this_coro::executor;
  auto initiate = [&pool, &value, &work, executor](auto handler) {
    // The tracked executor keeps the io_context running while only this work is outstanding.
    auto tracked = asio::prefer(executor, asio::execution::outstanding_work.tracked);
    asio::post(pool, [&value, &work, tracked, handler = std::move(handler)]() mutable {
      value.emplace(guarded(work));
      asio::post(tracked, std::move(handler));
    });
  };
  co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(std::move(initiate),
                                                                       asio::use_awaitable);
  co_return std::move(*value);
}

/// Called from blocking work: runs the coroutine `work` on the thread of `io`, which must be
/// another thread, and waits for its result.
template <class Value>
Value on_io(asio::io_context& io, asio::awaitable<Value> work) {
  return asio::co_spawn(io, std::move(work), asio::use_future).get();
}

/// Runs a function in the same way.
template <std::invocable Work>
std::invoke_result_t<Work&> on_io(asio::io_context& io, Work work) {
  return asio::post(io, asio::use_future(std::move(work))).get();
}

}  // namespace gcr::worker
