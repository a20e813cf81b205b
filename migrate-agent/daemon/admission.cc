#include "migrate-agent/daemon/admission.h"

#include <fmt/format.h>

#include <utility>

namespace gcr::agent {

struct Startups::Token::Counts {
  unsigned total = 0;
  std::map<std::string, unsigned> by_address;
};

Startups::Token::Token(std::shared_ptr<Counts> counts, std::string address)
    : counts_(std::move(counts)), address_(std::move(address)) {
  ++counts_->total;
  ++counts_->by_address[address_];
}

Startups::Token& Startups::Token::operator=(Token&& other) noexcept {
  if (this != &other) {
    reset();
    counts_ = std::move(other.counts_);
    address_ = std::move(other.address_);
  }
  return *this;
}

void Startups::Token::reset() {
  if (!counts_) return;
  --counts_->total;
  const auto found = counts_->by_address.find(address_);
  if (--found->second == 0) counts_->by_address.erase(found);
  counts_.reset();
}

Startups::Startups(unsigned limit) : limit_(limit), counts_(std::make_shared<Token::Counts>()) {}

std::optional<Startups::Token> Startups::admit(const std::string& address) {
  const auto found = counts_->by_address.find(address);
  const unsigned from_address = found == counts_->by_address.end() ? 0 : found->second;
  if (counts_->total >= limit_ || from_address >= (limit_ + 1) / 2) return std::nullopt;
  return Token(counts_, address);
}

Unplaced::Entry Unplaced::add(asio::ip::tcp::socket& socket) {
  if (waiting_->size() >= kLimit) {
    std::error_code ignored;
    waiting_->front()->close(ignored);  // its entry goes when its coroutine wakes
    waiting_->splice(waiting_->end(), *waiting_, waiting_->begin());
  }
  return {waiting_, waiting_->insert(waiting_->end(), &socket)};
}

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
