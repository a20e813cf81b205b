// A request to cancel a migration: the worker's code checks it between steps, or registers a
// callback. Any thread.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "src/base/result.h"

namespace gcr::agent {

class Cancellation {
 public:
  /// After it is destroyed, its callback is not running and will not run. Move-only; must not
  /// outlive the Cancellation.
  class Registration {
   public:
    Registration() = default;
    Registration(Registration&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), id_(other.id_) {}
    Registration& operator=(Registration&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(id_, other.id_);
      return *this;
    }
    ~Registration();

   private:
    friend class Cancellation;
    Registration(Cancellation* owner, unsigned id) : owner_(owner), id_(id) {}
    Cancellation* owner_ = nullptr;
    unsigned id_ = 0;
  };

  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  /// The first reason is kept. Runs every registered callback, on this thread, before it returns.
  void request(std::string why) { request(Error(Code::kCancelled, std::move(why))); }

  /// The same where nobody wishes it: the other agent is gone, for example.
  void request(Error why);

  bool requested() const;

  /// The reason, if it was requested: kCancelled, unless it was another error.
  Status check() const;

  /// `callback` runs once, on the thread that calls request(); at once, on this thread, if that has
  /// happened already. It may destroy registrations, including its own, but must not wait for other
  /// threads that do.
  [[nodiscard]] Registration on_request(std::function<void()> callback);

 private:
  mutable std::recursive_mutex mutex_;
  std::optional<Error> reason_;
  std::map<unsigned, std::function<void()>> callbacks_;
  unsigned last_id_ = 0;
};

}  // namespace gcr::agent
