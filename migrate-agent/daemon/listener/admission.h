// Limits what others can make the daemon hold. Belongs to the daemon's thread.
#pragma once

#include <asio/ip/tcp.hpp>
#include <cstddef>
#include <list>
#include <memory>
#include <set>
#include <string>

#include "src/base/result.h"

namespace gcr::daemon {

/// Counts what others hold, by name.
class Crowd {
 public:
  /// Counts one until it is reset or destroyed; null: none.
  using Place = std::shared_ptr<const void>;

  Place add(const std::string& name) {
    const auto at = names_->insert(name);
    return {&*at, [names = names_, at](const void*) { names->erase(at); }};
  }
  std::size_t size() const { return names_->size(); }
  std::size_t count(const std::string& name) const { return names_->count(name); }

 private:
  using Names = std::multiset<std::string>;
  std::shared_ptr<Names> names_ = std::make_shared<Names>();
};

/// Connections of strangers, who have not shown a certificate yet: in all and from one address.
class Startups {
 public:
  /// To be reset when the peer has shown its certificate.
  using Token = Crowd::Place;

  /// At most `limit` at once, and at most half of it (rounded up) from one address.
  explicit Startups(unsigned limit) : limit_(limit) {}

  /// Null if a limit is reached.
  Token admit(const std::string& address);

 private:
  unsigned limit_;
  Crowd strangers_;
};

/// Connections beyond those, until their prefaces have been read. A new one displaces the oldest,
/// so that a client that sends its preface at once is served however many others are silent.
class Unplaced {
 public:
  static constexpr std::size_t kLimit = 64;

  /// Forgets its connection when it is destroyed; may be null.
  using Entry = std::shared_ptr<const void>;

  /// Closes the oldest connection if there are too many. `socket` outlives the entry.
  Entry add(asio::ip::tcp::socket& socket);

 private:
  using List = std::list<asio::ip::tcp::socket*>;
  std::shared_ptr<List> waiting_ = std::make_shared<List>();
};

/// Connections of peers who have shown who they are, and with each a worker process.
class Peers {
 public:
  /// One connection, for as long as it lives.
  struct Place {
    Crowd::Place among_all;
    Crowd::Place among_others;  ///< null for an agent
  };

  /// At most `limit` (1 or more) at once, half of it (rounded up) for one peer, and a quarter
  /// (rounded down) for agents alone: they settle what has become of migrations.
  explicit Peers(unsigned limit) : limit_(limit) {}

  /// kResourceExhausted, with the limit that is reached.
  Result<Place> admit(const std::string& name, bool is_agent);

 private:
  unsigned limit_;
  Crowd all_;
  Crowd others_;  ///< those that are not agents
};

}  // namespace gcr::daemon
