// Linked into test programs that load the software GPU themselves: gives them their own GPU,
// separate from other programs on this machine, before the library is loaded.
#include <cstdlib>

namespace {

[[maybe_unused]] const bool kHasGpuOfItsOwn =
    ::setenv("SOFTGPU_DEVICES", GCR_SOFTGPU_DEVICES, 0) == 0 &&
    ::setenv("SOFTGPU_STORE", GCR_SOFTGPU_STORE, 0) == 0;

}  // namespace

/// LeakSanitizer, if there is one, cannot see into the library, which is not sanitized.
extern "C" const char* __lsan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_options() { return "detect_leaks=0"; }
