#include "migrate-agent/worker/cancellation.h"

namespace gcr::agent {

Cancellation::Registration::~Registration() {
  if (owner_ == nullptr) return;
  const std::lock_guard lock(owner_->mutex_);
  owner_->callbacks_.erase(id_);
}

void Cancellation::request(Error why) {
  const std::lock_guard lock(mutex_);
  if (!reason_) reason_ = std::move(why);
  while (!callbacks_.empty()) {
    const auto next = callbacks_.extract(callbacks_.begin());
    next.mapped()();
  }
}

bool Cancellation::requested() const {
  const std::lock_guard lock(mutex_);
  return reason_.has_value();
}

Status Cancellation::check() const {
  const std::lock_guard lock(mutex_);
  if (reason_) return *reason_;
  return {};
}

Cancellation::Registration Cancellation::on_request(std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  if (reason_) {
    callback();
    return {};
  }
  callbacks_.emplace(++last_id_, std::move(callback));
  return {this, last_id_};
}

}  // namespace gcr::agent
