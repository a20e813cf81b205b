// With whose rights files are touched.
#pragma once

#include <sys/types.h>

#include <vector>

#include "src/base/result.h"

namespace gcr::store {

struct Owner {
  uid_t uid = 0;
  gid_t gid = 0;
};

/// While it lives, this thread touches files as that user does, without further groups; other
/// threads go on as they were. Where this process is not root, it changes nothing.
class AsOwner {
 public:
  explicit AsOwner(const Owner& owner);
  ~AsOwner();
  AsOwner(const AsOwner&) = delete;
  AsOwner& operator=(const AsOwner&) = delete;

  /// kPermissionDenied where the kernel did not let this thread change: then it still has its own
  /// rights, and must not touch anything.
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
