// Opens the library that GCR_OPENS names with RTLD_DEEPBIND while it is being loaded itself, and
// calls it.
#include <dlfcn.h>
#include <stdlib.h>

namespace {

[[gnu::constructor]] void open() {
  void* const handle = dlopen(getenv("GCR_OPENS"), RTLD_NOW | RTLD_DEEPBIND);
  if (handle != nullptr) reinterpret_cast<int (*)()>(dlsym(handle, "deep_call"))();
}

}  // namespace
