// A library of a GPU driver, loaded at run time, so that an agent starts on a host without it.
#pragma once

#include <dlfcn.h>

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
                                    std::string needed = {});

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
    return function != nullptr ? Status() : lacks(name);
  }

 private:
  struct Unload {
    void operator()(void* handle) const { ::dlclose(handle); }
  };
  Error lacks(const char* name) const;

  std::unique_ptr<void, Unload> handle_;
  std::string what_;
  std::string needed_;
};

}  // namespace gcr::device
