// Bounds what strangers can make the daemon hold: connections that have not shown a certificate
// yet, in all and from one address. Belongs to the daemon's thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace gcr::agent {

class Startups {
 public:
  /// Counts one connection for as long as it lives. Move-only.
  class Token {
   public:
    Token(Token&& other) noexcept = default;
    Token& operator=(Token&& other) noexcept;
    ~Token() { reset(); }
    /// Stops counting early: the peer has shown its certificate.
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

}  // namespace gcr::agent
