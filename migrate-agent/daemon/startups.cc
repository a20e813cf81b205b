#include "migrate-agent/daemon/startups.h"

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

}  // namespace gcr::agent
