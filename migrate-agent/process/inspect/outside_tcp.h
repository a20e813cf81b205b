// What becomes of a TCP connection whose other end does not move.
#pragma once

namespace gcr::process {

enum class OutsideTcp {
  kRefuse,  ///< it prevents the migration
  kClose,   ///< at the destination the program sees that it was reset
};

}  // namespace gcr::process
