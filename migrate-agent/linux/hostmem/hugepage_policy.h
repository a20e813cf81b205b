#pragma once

namespace gcr::hostmem {

enum class HugepagePolicy {
  kInvalid = 0,
  kAuto,     ///< hugepages, or ordinary pages with a note
  kRequire,  ///< hugepages or nothing
  kNever,    ///< ordinary pages
};

}  // namespace gcr::hostmem
