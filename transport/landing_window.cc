#include "transport/landing_window.h"

#include <fmt/format.h>

namespace gcr::transport {

Status LandingWindow::check(unsigned lanes) const {
  if (places() >= lanes && places() > 0 && on_arrived) return {};
  return Error(Code::kInvalidArgument,
               fmt::format("a landing window of {} has not a place for each of {} lanes",
                           format_bytes(bytes.size()), lanes));
}

}  // namespace gcr::transport
