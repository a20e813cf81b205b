// A library of a GPU driver, loaded at run time, so that an agent starts on a host without it.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>
#include <string>

#include "src/base/result.h"

namespace gcr::device {

/// Owns the library and unloads it. Move-only; any thread.
class LoadedLibrary {
 public:
  LoadedLibrary() = default;

  /// Loads `file`. `what` it is and which release is `needed` are for errors: "CUDA driver",
  /// "driver 570 or newer". kNotFound, with the loader's reason.
  static Result<LoadedLibrary> load(const std::string& file, std::string what,
                                    std::string needed = {}) {
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

  explicit operator bool() const { return handle_ != nullptr; }

  /// Null if the library lacks it.
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_.get(), name));
  }

  /// Sets `function` to that of this name. kUnsupported if the library lacks it.
  template <class Function>
  Status resolve(const char* name, Function*& function) const {
    function = find<Function>(name);
    if (function != nullptr) return {};
    return Error(Code::kUnsupported,
                 fmt::format("this host's {} lacks {}{}", what_, name,
                             needed_.empty() ? "" : "; " + needed_ + " is needed"));
  }

 private:
  struct Unload {
    void operator()(void* handle) const { ::dlclose(handle); }
  };

  std::unique_ptr<void, Unload> handle_;
  std::string what_;
  std::string needed_;
};

}  // namespace gcr::device
