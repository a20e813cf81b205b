// Descriptors that the library keeps in the application's table. They live at high numbers, out of
// the way of programs that count on getting low ones, and never survive an exec.
#pragma once

namespace gcr::preload {

/// The same open file at a number of 512 or more where the limit allows, else unchanged. Consumes
/// `fd`; calls no malloc.
int move_high(int fd);

/// While it lives, the soft limit on descriptors is the hard one: what is received meanwhile fits
/// however many the application may open itself. Descriptors above the limit stay valid after it.
class RaisedDescriptorLimit {
 public:
  RaisedDescriptorLimit();
  ~RaisedDescriptorLimit();
  RaisedDescriptorLimit(const RaisedDescriptorLimit&) = delete;
  RaisedDescriptorLimit& operator=(const RaisedDescriptorLimit&) = delete;

  /// As gcr::preload::move_high, but above what the application itself may use, where that fits.
  int move_high(int fd) const;

 private:
  unsigned long soft_ = 0;
  unsigned long hard_ = 0;
  bool raised_ = false;
};

}  // namespace gcr::preload
