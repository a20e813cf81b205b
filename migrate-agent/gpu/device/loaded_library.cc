#include "migrate-agent/gpu/device/loaded_library.h"

#include <fmt/format.h>

namespace gcr::device {

Result<LoadedLibrary> LoadedLibrary::load(const std::string& file, std::string what,
                                          std::string needed) {
  LoadedLibrary library;
  library.handle_.reset(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!library) {
    // dlerror's text belongs to the calling thread. NOLINTNEXTLINE(concurrency-mt-unsafe)
    return Error(Code::kNotFound, fmt::format("this host has no {}: {}", what, ::dlerror()));
  }
  library.what_ = std::move(what);
  library.needed_ = std::move(needed);
  return library;
}

Error LoadedLibrary::lacks(const char* name) const {
  return {Code::kUnsupported, fmt::format("this host's {} lacks {}{}", what_, name,
                                          needed_.empty() ? "" : "; " + needed_ + " is needed")};
}

}  // namespace gcr::device
