// Limits what authenticated peers can hold: connections, and with each a worker process. Belongs to
// the daemon's thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "src/base/result.h"

namespace gcr::agent {

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
  /// (rounded down) reserved for agents, because they settle migrations.
  explicit Peers(unsigned limit);

  /// kResourceExhausted, naming the limit.
  Result<Place> admit(const std::string& name, bool is_agent);

 private:
  unsigned limit_;
  std::shared_ptr<Place::Counts> counts_;
};

}  // namespace gcr::agent
