// Blocking work next to coroutines: offload() runs a callable on a thread pool while the io_context
// goes on, and resumes the coroutine on its own executor; on_io() is the way back.
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

/// What `work()` returns, a Result<T> or Status; an exception that leaves it becomes an Error of
/// kInternal.
template <class Work>
std::invoke_result_t<Work&> guarded(Work&& work) {
  try {
    return work();
  } catch (const std::exception& exception) {
    return Error(Code::kInternal, exception.what());
  }
}

/// Runs `work()`, which returns a Result<T> or Status, on a thread of `pool`, and gives what it
/// returned. An exception that leaves `work` becomes an Error of kInternal. What `work` refers to
/// must live until it has returned; the awaiting coroutine does. Cancelling the coroutine does not
/// interrupt `work`: the coroutine resumes only after `work` has returned, so nothing is left
/// running.
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

/// For blocking work: runs `work` on the thread of `io`, which is another one, and waits for what
/// it gives.
template <class Value>
Value on_io(asio::io_context& io, asio::awaitable<Value> work) {
  return asio::co_spawn(io, std::move(work), asio::use_future).get();
}

/// The same for a function.
template <std::invocable Work>
std::invoke_result_t<Work&> on_io(asio::io_context& io, Work work) {
  return asio::post(io, asio::use_future(std::move(work))).get();
}

}  // namespace gcr::worker
