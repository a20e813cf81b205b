// Access to files with the rights of their owner.
#pragma once

#include <sys/types.h>

#include <optional>
#include <utility>
#include <vector>

#include "src/base/result.h"

namespace gcr::store {

struct Owner {
  uid_t uid = 0;
  gid_t gid = 0;
};

/// Gives this thread the file access rights of a user, without supplementary groups, while it
/// lives. Other threads are not affected. Does nothing if this process is not root.
class AsOwner {
 public:
  /// kPermissionDenied if the kernel refuses the change: then the thread has its previous rights,
  /// and must not access files.
  static Result<AsOwner> take(const Owner& owner);

  AsOwner(AsOwner&& other) noexcept : previous_(std::exchange(other.previous_, std::nullopt)) {}
  ~AsOwner();

 private:
  struct Rights {
    uid_t uid;
    gid_t gid;
    std::vector<gid_t> groups;
  };

  AsOwner() = default;

  std::optional<Rights> previous_;  ///< of the thread; none if nothing was changed
};

}  // namespace gcr::store
