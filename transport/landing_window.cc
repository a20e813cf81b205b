#include "transport/landing_window.h"

#include <fmt/format.h>

namespace gcr::transport {

Status LandingWindow::check(unsigned lanes) const {
  if (places() >= lanes && places() > 0 && on_arrived) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("a landing window of {} is too small for {} lanes: each needs {}",
                           format_bytes(bytes.size()), lanes, format_bytes(kPlaceBytes)));
}

}  // namespace gcr::transport
