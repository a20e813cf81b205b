#include "migrate-agent/daemon/listener/admission.h"

#include <fmt/format.h>

namespace gcr::daemon {

Startups::Token Startups::admit(const std::string& address) {
  if (startups_.size() >= limit_ || startups_.count(address) >= (limit_ + 1) / 2) return {};
  return startups_.add(address);
}

ExcessConnections::Entry ExcessConnections::add(asio::ip::tcp::socket& socket) {
  if (waiting_->size() >= kLimit) {
    std::error_code ignored;
    waiting_->front()->close(ignored);  // the entry is removed when its coroutine wakes
    waiting_->splice(waiting_->end(), *waiting_, waiting_->begin());
  }
  const auto at = waiting_->insert(waiting_->end(), &socket);
  return {&socket, [list = waiting_, at](const void*) { list->erase(at); }};
}

Result<Peers::Place> Peers::admit(const std::string& name, bool is_agent) {
  const auto too_many = [&](const std::string& who, std::size_t count) {
    return Error(Code::kResourceExhausted,
                 fmt::format("this agent already serves {} connections of {}, the most that "
                             "max_connections = {} in its agent.toml allows them; try again later",
                             count, who, limit_));
  };
  const std::size_t of_peer = all_.count(name);
  if (of_peer >= (limit_ + 1) / 2) return too_many(fmt::format("\"{}\"", name), of_peer);
  if (all_.size() >= limit_) return too_many("all peers", all_.size());
  if (is_agent) return Place{all_.add(name), {}};
  if (others_.size() >= limit_ - limit_ / 4) {
    return too_many("operators and local users", others_.size());
  }
  return Place{all_.add(name), others_.add(name)};
}

}  // namespace gcr::daemon
