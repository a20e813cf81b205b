// Descriptors that the library keeps in the application's table. They have high numbers, because
// some programs rely on getting low ones, and are closed by exec.
#pragma once

namespace gcr::preload {

/// Moves `fd` to a number of 512 or more if the limit allows, and returns it, else `fd` itself.
/// Does not call malloc.
int move_high(int fd);

/// Raises the soft limit on descriptors to the hard limit while it lives, so that received
/// descriptors fit regardless of the application's limit. Descriptors above the limit stay valid
/// afterwards.
class RaisedDescriptorLimit {
 public:
  RaisedDescriptorLimit();
  ~RaisedDescriptorLimit();
  RaisedDescriptorLimit(const RaisedDescriptorLimit&) = delete;
  RaisedDescriptorLimit& operator=(const RaisedDescriptorLimit&) = delete;

  /// Moves `fd` above the application's own limit if possible, and returns the number.
  int move_high(int fd) const;

 private:
  unsigned long soft_ = 0;
  unsigned long hard_ = 0;
  bool raised_ = false;
};

}  // namespace gcr::preload
