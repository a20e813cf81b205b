#include "migrate-agent/daemon/peers.h"

#include <fmt/format.h>

#include <utility>

namespace gcr::agent {

struct Peers::Place::Counts {
  unsigned total = 0;
  unsigned not_agents = 0;
  std::map<std::string, unsigned> by_name;
};

Peers::Place::Place(std::shared_ptr<Counts> counts, std::string name, bool is_agent)
    : counts_(std::move(counts)), name_(std::move(name)), is_agent_(is_agent) {
  ++counts_->total;
  if (!is_agent_) ++counts_->not_agents;
  ++counts_->by_name[name_];
}

Peers::Place& Peers::Place::operator=(Place&& other) noexcept {
  if (this != &other) {
    leave();
    counts_ = std::move(other.counts_);
    name_ = std::move(other.name_);
    is_agent_ = other.is_agent_;
  }
  return *this;
}

void Peers::Place::leave() {
  if (!counts_) return;
  --counts_->total;
  if (!is_agent_) --counts_->not_agents;
  const auto found = counts_->by_name.find(name_);
  if (--found->second == 0) counts_->by_name.erase(found);
  counts_.reset();
}

Peers::Peers(unsigned limit) : limit_(limit), counts_(std::make_shared<Place::Counts>()) {}

Result<Peers::Place> Peers::admit(const std::string& name, bool is_agent) {
  const auto too_many = [&](const std::string& who, unsigned count) {
    return Error(Code::kResourceExhausted,
                 fmt::format("this agent serves {} connections of {} already, as many as "
                             "max_connections = {} of its agent.toml leaves them; try again later",
                             count, who, limit_));
  };
  const auto found = counts_->by_name.find(name);
  const unsigned of_peer = found == counts_->by_name.end() ? 0 : found->second;
  if (of_peer >= (limit_ + 1) / 2) return too_many(fmt::format("\"{}\"", name), of_peer);
  if (counts_->total >= limit_) return too_many("all peers", counts_->total);
  if (!is_agent && counts_->not_agents >= limit_ - limit_ / 4) {
    return too_many("operators and local users", counts_->not_agents);
  }
  return Place(counts_, name, is_agent);
}

}  // namespace gcr::agent
