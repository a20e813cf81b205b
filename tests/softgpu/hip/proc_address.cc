// hipGetProcAddress and its like: the result of a lookup of the name in this library, if the
// simulated release has it.
#include <dlfcn.h>

#include <cstring>

#include "tests/softgpu/hip/face.h"

namespace gcr::softgpu::hip {
namespace {

enum class Form { kLegacy, kSpt };

struct Known {
  const char* symbol;
  const char* public_name;
  int since;
  Form form;
};

constexpr Known kKnown[] = {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, form, policy, params, args) \
  {#symbol, #public_name, since, Form::form},
#include "preload/hip/hip_api.def"
};

constexpr int kFirstWithPerThreadForms = 702;
constexpr int kFirstOfOtherProperties = 600;

/// The release's symbol for this name; null: it has none.
const char* symbol_for(const char* name, int version, std::uint64_t flags) {
  const bool per_thread = release() >= kFirstWithPerThreadForms &&
                          flags == HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (std::strcmp(name, "hipGetDeviceProperties") == 0) {
    return version >= kFirstOfOtherProperties ? "hipGetDevicePropertiesR0600" : name;
  }
  const Known* best = nullptr;
  bool listed = false;
  for (const Known& known : kKnown) {
    if (std::strcmp(known.public_name, name) != 0) continue;
    listed = true;
    if (known.since > release() || (known.form == Form::kSpt && !per_thread)) continue;
    if (best == nullptr || known.form == Form::kSpt) best = &known;
  }
  if (!listed) return name;
  return best != nullptr ? best->symbol : nullptr;
}

void* find(const char* symbol) {
  Dl_info self{};
  if (::dladdr(kKnown, &self) == 0) return nullptr;
  void* library = ::dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* function = ::dlsym(library, symbol);
  ::dlclose(library);
  return function;
}

/// The function, or null.
hipError_t look_up(const char* name, void** function, int version, std::uint64_t flags) {
  if (name == nullptr || *name == '\0' || function == nullptr) {
    return remember(hipErrorInvalidValue);
  }
  const char* symbol = symbol_for(name, version, flags);
  *function = symbol != nullptr ? find(symbol) : nullptr;
  return remember(*function != nullptr ? hipSuccess : hipErrorInvalidValue);
}

hipError_t find_entry_point(DefaultStream flavour, const char* name, void** function,
                            unsigned long long flags, hipDriverEntryPointQueryResult* status) {
  const bool per_thread = flavour == DefaultStream::kPerThread;
  const hipError_t result =
      look_up(name, function, release(),
              per_thread ? HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : flags);
  if (status != nullptr) {
    *status = result == hipSuccess ? hipDriverEntryPointSuccess : hipDriverEntryPointSymbolNotFound;
  }
  return result;
}

}  // namespace

SOFTHIP_API hipGetProcAddress(const char* name, void** function, int version, std::uint64_t flags,
                              hipDriverProcAddressQueryResult* status) {
  const hipError_t result = look_up(name, function, version, flags);
  if (status != nullptr) {
    *status =
        result == hipSuccess ? HIP_GET_PROC_ADDRESS_SUCCESS : HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return result;
}

SOFTHIP_BOTH(hipGetDriverEntryPoint, find_entry_point,
             (const char* name, void** function, unsigned long long flags,
              hipDriverEntryPointQueryResult* status),
             name, function, flags, status)

}  // namespace gcr::softgpu::hip
