// Limits what others can make the daemon hold. Belongs to the daemon's thread.
#pragma once

#include <asio/ip/tcp.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "src/base/result.h"

namespace gcr::agent {

/// Connections of strangers, who have not shown a certificate yet: in all and from one address.
class Startups {
 public:
  /// Counts one connection for as long as it lives. Move-only.
  class Token {
   public:
    Token(Token&& other) noexcept = default;
    Token& operator=(Token&& other) noexcept;
    ~Token() { reset(); }
    /// Stops counting: the peer has shown its certificate.
    void reset();

   private:
    friend class Startups;
    struct Counts;
    Token(std::shared_ptr<Counts> counts, std::string address);
    std::shared_ptr<Counts> counts_;
    std::string address_;
  };

  /// At most `limit` at once, and at most half of it (rounded up) from one address.
  explicit Startups(unsigned limit);

  /// Nothing if a limit is reached.
  std::optional<Token> admit(const std::string& address);

 private:
  unsigned limit_;
  std::shared_ptr<Token::Counts> counts_;
};

/// Connections beyond those, until their prefaces have been read. A new one displaces the oldest,
/// so that a client that sends its preface at once is served however many others are silent.
class Unplaced {
 public:
  static constexpr std::size_t kLimit = 64;

  /// Forgets its connection when it is destroyed. Move-only; empty by default.
  class Entry {
   public:
    Entry() = default;
    Entry(Entry&& other) noexcept = default;
    Entry& operator=(Entry&&) = delete;
    ~Entry() {
      if (list_) list_->erase(at_);
    }

   private:
    friend class Unplaced;
    using List = std::list<asio::ip::tcp::socket*>;
    Entry(std::shared_ptr<List> list, List::iterator at) : list_(std::move(list)), at_(at) {}
    std::shared_ptr<List> list_;
    List::iterator at_;
  };

  /// Closes the oldest connection if there are too many. `socket` outlives the entry.
  Entry add(asio::ip::tcp::socket& socket);

 private:
  std::shared_ptr<Entry::List> waiting_ = std::make_shared<Entry::List>();
};

/// Connections of peers who have shown who they are, and with each a worker process.
class Peers {
 public:
  /// One connection, for as long as it lives. Move-only.
  class Place {
   public:
    Place(Place&& other) noexcept = default;
    Place& operator=(Place&& other) noexcept;
    ~Place() { leave(); }

   private:
    friend class Peers;
    struct Counts;
    Place(std::shared_ptr<Counts> counts, std::string name, bool is_agent);
    void leave();
    std::shared_ptr<Counts> counts_;
    std::string name_;
    bool is_agent_ = false;
  };

  /// At most `limit` (1 or more) at once, half of it (rounded up) for one peer, and a quarter
  /// (rounded down) for agents alone: they settle what has become of migrations.
  explicit Peers(unsigned limit);

  /// kResourceExhausted, with the limit that is reached.
  Result<Place> admit(const std::string& name, bool is_agent);

 private:
  unsigned limit_;
  std::shared_ptr<Place::Counts> counts_;
};

}  // namespace gcr::agent
