// A libcuda.so.1 that only records how it was called: every row of driver_api.def, functions
// without a shim, cuGetProcAddress by its documented rule, and two functions that no table knows.
//
// GCR_FAKE_VERSION is the newest CUDA version that its cuGetProcAddress knows.
// GCR_FAKE_OWN_ADDRESSES: cuGetProcAddress gives addresses that the symbol table does not.
#include "tests/preload/table/fake_driver.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>

#include "preload/cuda/abi/driver_abi.h"

#define GCR_FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace gcr::preload::fake {
namespace {

Call g_call;

template <class... Arguments>
CUresult remember(const char* symbol, bool looked_up, Arguments... arguments) {
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
  return static_cast<CUresult>(kResult);
}

CUresult look_up(const char* symbol, void** pfn, int version, cuuint64_t flags);

}  // namespace
}  // namespace gcr::preload::fake

// The first argument of the recording call carries the trailing comma, since a list may be empty.
#define GCR_UNPACK(...) __VA_OPT__(, ) __VA_ARGS__
#define GCR_FAKE(symbol, params, args)                                   \
  GCR_FAKE_EXPORT CUresult symbol params {                               \
    return gcr::preload::fake::remember(#symbol, false GCR_UNPACK args); \
  }                                                                      \
  static CUresult own_##symbol params {                                  \
    return gcr::preload::fake::remember(#symbol, true GCR_UNPACK args);  \
  }
#define GCR_FAKE_kGated GCR_FAKE
#define GCR_FAKE_kCopies GCR_FAKE
#define GCR_FAKE_kTracked GCR_FAKE
#define GCR_FAKE_kWaits GCR_FAKE
#define GCR_FAKE_kPassed GCR_FAKE
#define GCR_FAKE_kLookup(symbol, params, args) \
  GCR_FAKE_EXPORT CUresult symbol params;      \
  static CUresult own_##symbol params { return symbol args; }
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  GCR_FAKE_##policy(symbol, params, args)
#include "preload/cuda/driver_api.def"

#define GCR_NO_ROW(symbol) \
  GCR_FAKE_EXPORT CUresult symbol() { return gcr::preload::fake::remember(#symbol, false); }
#include "preload/cuda_no_row.inc"

/// A function that only newer drivers have, under a name that the table knows.
GCR_FAKE_EXPORT CUresult cuMemcpyBatchAsync_v9(int a, int b) {
  return gcr::preload::fake::remember("cuMemcpyBatchAsync_v9", false, a, b);
}
/// A function that the table does not know.
GCR_FAKE_EXPORT CUresult cuNeverHeardOf(int a) {
  return gcr::preload::fake::remember("cuNeverHeardOf", false, a);
}

namespace gcr::preload::fake {
namespace {

constexpr int kLegacy = 0;
constexpr int kPtds = 1;
constexpr int kPtsz = 1;

struct Known {
  const char* symbol;
  const char* public_name;
  int since;
  int thread_stream;
  void* exported;
  void* own;
};

const Known kKnown[] = {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  {#symbol,                                                                            \
   #public_name,                                                                       \
   since,                                                                              \
   flavour,                                                                            \
   reinterpret_cast<void*>(&symbol),                                                   \
   reinterpret_cast<void*>(&own_##symbol)},
#include "preload/cuda/driver_api.def"
#define GCR_NO_ROW(symbol)           \
  {#symbol,                          \
   #symbol,                          \
   2000,                             \
   kLegacy,                          \
   reinterpret_cast<void*>(&symbol), \
   reinterpret_cast<void*>(&symbol)},
#include "preload/cuda_no_row.inc"
    {"cuMemcpyBatchAsync_v9", "cuMemcpyBatchAsync", 13040, kLegacy,
     reinterpret_cast<void*>(&cuMemcpyBatchAsync_v9),
     reinterpret_cast<void*>(&cuMemcpyBatchAsync_v9)},
    {"cuNeverHeardOf", "cuNeverHeardOf", 2000, kLegacy, reinterpret_cast<void*>(&cuNeverHeardOf),
     reinterpret_cast<void*>(&cuNeverHeardOf)},
};

/// The newest version not above `version`: the per-thread form if that is requested and the name
/// has one. (A 580 driver was seen to do exactly this, and to refuse versions above its own.)
const Known* find(const char* public_name, int version, cuuint64_t flags) {
  if (version > GCR_FAKE_VERSION) return nullptr;
  const Known* best[2] = {nullptr, nullptr};
  bool has_thread_form = false;
  for (const Known& known : kKnown) {
    if (std::strcmp(known.public_name, public_name) != 0) continue;
    if (known.thread_stream != 0) has_thread_form = true;
    if (known.since > version) continue;
    const Known*& slot = best[known.thread_stream];
    if (slot == nullptr || known.since > slot->since) slot = &known;
  }
  const bool thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  return best[thread && has_thread_form ? 1 : 0];
}

CUresult look_up(const char* symbol, void** pfn, int version, cuuint64_t flags) {
  const Known* known = find(symbol, version, flags);
  *pfn = nullptr;
  if (version > GCR_FAKE_VERSION) return CUDA_ERROR_INVALID_VALUE;
  if (known == nullptr) return CUDA_ERROR_NOT_FOUND;
#ifdef GCR_FAKE_OWN_ADDRESSES
  *pfn = known->own;
#else
  *pfn = known->exported;
#endif
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace gcr::preload::fake

using gcr::preload::fake::Call;

CUresult cuGetProcAddress(const char* symbol, void** pfn, int cuda_version, cuuint64_t flags) {
  return gcr::preload::fake::look_up(symbol, pfn, cuda_version, flags);
}

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cuda_version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbol_status) {
  const CUresult result = gcr::preload::fake::look_up(symbol, pfn, cuda_version, flags);
  if (symbol_status != nullptr) {
    *symbol_status =
        result == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;
}

GCR_FAKE_EXPORT const Call* gcr_fake_take_call() {
  static Call taken;
  taken = std::exchange(gcr::preload::fake::g_call, Call{});
  return &taken;
}

GCR_FAKE_EXPORT const char* gcr_fake_meant(const char* public_name, int version,
                                           unsigned long long flags) {
  const auto* known = gcr::preload::fake::find(public_name, version, flags);
  return known == nullptr ? nullptr : known->symbol;
}
