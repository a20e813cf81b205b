// Descriptors that the library keeps in the application's table. They have high numbers, because
// some programs expect to get low ones, and never survive an exec.
#pragma once

namespace gcr::preload {

/// The same open file at a number of 512 or more where the limit allows, else unchanged. Consumes
/// `fd`; calls no malloc.
int move_high(int fd);

/// While it exists, the soft limit on descriptors is the hard one, so that received descriptors fit
/// whatever the application's own limit is. Descriptors above the limit stay valid afterwards.
class RaisedDescriptorLimit {
 public:
  RaisedDescriptorLimit();
  ~RaisedDescriptorLimit();
  RaisedDescriptorLimit(const RaisedDescriptorLimit&) = delete;
  RaisedDescriptorLimit& operator=(const RaisedDescriptorLimit&) = delete;

  /// As gcr::preload::move_high, but above the application's own limit, if that fits.
  int move_high(int fd) const;

 private:
  unsigned long soft_ = 0;
  unsigned long hard_ = 0;
  bool raised_ = false;
};

}  // namespace gcr::preload
