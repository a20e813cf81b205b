// A libamdhip64.so.6 with every function of the table and one of a later release, each of which
// only records its call and arguments. As the real one, it calls one of its own functions through
// the loader's tables, has versioned symbols, and finds functions by dlsym.
#include <dlfcn.h>

#include <cstring>
#include <utility>

#include "preload/hip/abi/hip_abi.h"
#include "tests/preload/table/fake_driver.h"

#define GCR_FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace gcr::preload::fake {
namespace {

Call g_call;
bool g_nested = false;

template <class Answer, class... Arguments>
Answer remember(const char* symbol, bool looked_up, Arguments... arguments) {
  g_call = Call{};
  g_call.symbol = symbol;
  g_call.looked_up = looked_up;
  [[maybe_unused]] const auto keep = [](const auto& argument) {
    constexpr std::size_t bytes = sizeof(argument);  // NOLINT(bugprone-sizeof-expression): pointers
    std::memcpy(g_call.arguments.data() + g_call.argument_bytes, &argument, bytes);
    g_call.argument_bytes += bytes;
  };
  (keep(arguments), ...);
  using InFlight = unsigned int (*)();
  if (void* const address = dlsym(RTLD_DEFAULT, "cuTestGateInFlight")) {
    g_call.gate_in_flight = reinterpret_cast<InFlight>(address)();
  }
  if constexpr (std::is_same_v<Answer, hipError_t>) return static_cast<Answer>(kResult);
  if constexpr (std::is_pointer_v<Answer>) return nullptr;
}

}  // namespace
}  // namespace gcr::preload::fake

GCR_FAKE_EXPORT hipError_t hipFree(void* ptr);

#define GCR_UNPACK(...) __VA_OPT__(, ) __VA_ARGS__
#define GCR_FAKE(result, symbol, params, args)                                   \
  GCR_FAKE_EXPORT result symbol params {                                         \
    if (gcr::preload::fake::g_nested) {                                          \
      gcr::preload::fake::g_nested = false;                                      \
      hipFree(nullptr);                                                          \
    }                                                                            \
    return gcr::preload::fake::remember<result>(#symbol, false GCR_UNPACK args); \
  }                                                                              \
  static result own_##symbol params {                                            \
    return gcr::preload::fake::remember<result>(#symbol, true GCR_UNPACK args);  \
  }
#define GCR_FAKE_kGated GCR_FAKE
#define GCR_FAKE_kTracked GCR_FAKE
#define GCR_FAKE_kWaits GCR_FAKE
#define GCR_FAKE_kPassed GCR_FAKE
#define GCR_FAKE_kLookup(result, symbol, params, args) \
  GCR_FAKE_EXPORT result symbol params;                \
  static result own_##symbol params { return symbol args; }
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  GCR_FAKE_##policy(result, symbol, params, args)
#include "preload/hip/hip_api.def"

#define GCR_NO_ROW(symbol)                                           \
  GCR_FAKE_EXPORT hipError_t symbol() {                              \
    return gcr::preload::fake::remember<hipError_t>(#symbol, false); \
  }
#include "preload/hip_no_row.inc"

GCR_FAKE_EXPORT hipError_t hipOfALaterRelease() {
  return gcr::preload::fake::remember<hipError_t>("hipOfALaterRelease", false);
}

namespace gcr::preload::fake {
namespace {

constexpr bool kLegacy = false;
constexpr bool kSpt = true;

struct Known {
  const char* symbol;
  const char* public_name;
  bool thread_stream;
  void* own;
};

const Known kKnown[] = {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  {#symbol, #public_name, flavour, reinterpret_cast<void*>(&own_##symbol)},
#include "preload/hip/hip_api.def"
#define GCR_NO_ROW(symbol) {#symbol, #symbol, kLegacy, reinterpret_cast<void*>(&symbol)},
#include "preload/hip_no_row.inc"
    {"hipOfALaterRelease", "hipOfALaterRelease", kLegacy,
     reinterpret_cast<void*>(&hipOfALaterRelease)},
};

/// The requested per-thread form, if the name has it.
const Known* find(const char* public_name, bool thread_stream) {
  const Known* best = nullptr;
  for (const Known& known : kKnown) {
    if (std::strcmp(known.public_name, public_name) != 0) continue;
    if (std::strncmp(known.symbol, "_Z", 2) == 0) continue;
    if (best == nullptr || known.thread_stream == thread_stream) best = &known;
  }
  return best;
}

hipError_t look_up(const char* symbol, void** pfn, bool thread_stream, bool own) {
  const Known* known = find(symbol, thread_stream);
  *pfn = nullptr;
  if (known == nullptr) return hipErrorNotFound;
  void* const library = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_NOLOAD);
  *pfn = own ? known->own : dlsym(library, known->symbol);
  return hipSuccess;
}

}  // namespace
}  // namespace gcr::preload::fake

using gcr::preload::fake::Call;
using gcr::preload::fake::look_up;

/// Version 1: addresses that the symbol table does not have.
hipError_t hipGetProcAddress(const char* symbol, void** pfn, int hip_version, std::uint64_t flags,
                             hipDriverProcAddressQueryResult*) {
  return look_up(symbol, pfn, (flags & HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0,
                 hip_version == 1);
}

hipError_t hipGetDriverEntryPoint(const char* symbol, void** func_ptr, unsigned long long flags,
                                  hipDriverEntryPointQueryResult*) {
  return look_up(symbol, func_ptr, (flags & HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0,
                 false);
}

hipError_t hipGetDriverEntryPoint_spt(const char* symbol, void** func_ptr, unsigned long long,
                                      hipDriverEntryPointQueryResult*) {
  return look_up(symbol, func_ptr, true, false);
}

GCR_FAKE_EXPORT const Call* gcr_fake_take_call() {
  static Call taken;
  taken = std::exchange(gcr::preload::fake::g_call, Call{});
  return &taken;
}

/// The next function calls hipFree.
GCR_FAKE_EXPORT void gcr_fake_nest() { gcr::preload::fake::g_nested = true; }
