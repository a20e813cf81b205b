// Limits the resources that clients can make the daemon hold. Belongs to the daemon's thread.
//
// A connection passes three stages, each with its own limit:
// 1. Startups: until its peer has shown a certificate (or, locally, sent its first message).
//    Limited in all and for each address, so that one address cannot use them all.
// 2. ExcessConnections: beyond that limit, only until the preface has been read. The newest
//    displaces the oldest, so that silent clients cannot lock out a data connection or a client
//    that names a known migration.
// 3. Peers: from the certificate on. Limited in all and for each peer; a share is reserved for
//    agents, since recovery needs them.
#pragma once

#include <asio/ip/tcp.hpp>
#include <cstddef>
#include <list>
#include <memory>
#include <set>
#include <string>

#include "src/base/result.h"

namespace gcr::daemon {

/// Counts entries by name.
class NamedCount {
 public:
  /// A counted entry, until it is reset or destroyed; null: none.
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

/// The first stage.
class Startups {
 public:
  /// A connection's entry; reset it when the peer has shown its certificate.
  using Token = NamedCount::Place;

  /// Admits at most `limit` at once, and at most half of it (rounded up) from one address.
  explicit Startups(unsigned limit) : limit_(limit) {}

  /// Counts one connection; null if a limit is reached.
  Token admit(const std::string& address);

 private:
  unsigned limit_;
  NamedCount startups_;
};

/// The second stage.
class ExcessConnections {
 public:
  static constexpr std::size_t kLimit = 64;

  /// Removes its connection from the list when it is destroyed; may be null.
  using Entry = std::shared_ptr<const void>;

  /// Adds a connection, and closes the oldest one if there are too many. `socket` must outlive the
  /// entry.
  Entry add(asio::ip::tcp::socket& socket);

 private:
  using List = std::list<asio::ip::tcp::socket*>;
  std::shared_ptr<List> waiting_ = std::make_shared<List>();
};

/// The third stage. Each of its connections has a worker process.
class Peers {
 public:
  /// The entries of one connection; they last as long as it.
  struct Place {
    NamedCount::Place among_all;
    NamedCount::Place among_others;  ///< null for an agent
  };

  /// Admits at most `limit` (1 or more) at once, half of it (rounded up) for one peer. A quarter
  /// (rounded down) is reserved for agents.
  explicit Peers(unsigned limit) : limit_(limit) {}

  /// Counts one connection. kResourceExhausted, naming the limit that is reached.
  Result<Place> admit(const std::string& name, bool is_agent);

 private:
  unsigned limit_;
  NamedCount all_;
  NamedCount others_;  ///< those that are not agents
};

}  // namespace gcr::daemon
