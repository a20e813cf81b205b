// Access to files with the rights of their owner.
#pragma once

#include <sys/types.h>

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
  explicit AsOwner(const Owner& owner);
  ~AsOwner();
  AsOwner(const AsOwner&) = delete;
  AsOwner& operator=(const AsOwner&) = delete;

  /// kPermissionDenied if the kernel refused the change: then the thread has its previous rights,
  /// and must not access files.
  Status status() const;

 private:
  void restore();

  uid_t uid_ = 0;
  gid_t gid_ = 0;
  std::vector<gid_t> groups_;
  bool changed_ = false;
  bool failed_ = false;
};

}  // namespace gcr::store
