// A limit on the duration of asynchronous work: unless the Deadline is destroyed first, its action
// runs once on the executor, typically closing the socket that the work waits for.
#pragma once

#include <asio/any_io_executor.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace gcr::control {

/// Belongs to the thread that runs its executor. The action never runs after destruction, so it may
/// refer to objects that live at least as long as the Deadline.
class Deadline {
 public:
  Deadline(const asio::any_io_executor& executor, std::chrono::milliseconds timeout,
           std::function<void()> action)
      : timer_(executor, timeout), state_(std::make_shared<State>()) {
    state_->action = std::move(action);
    timer_.async_wait([state = state_](const std::error_code& error) {
      if (error || !state->armed) return;
      state->expired = true;
      state->action();
    });
  }
  ~Deadline() { state_->armed = false; }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  bool expired() const { return state_->expired; }

 private:
  struct State {
    std::function<void()> action;
    bool armed = true;
    bool expired = false;
  };
  asio::steady_timer timer_;
  std::shared_ptr<State> state_;
};

}  // namespace gcr::control
