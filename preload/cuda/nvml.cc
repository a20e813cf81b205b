#include "preload/cuda/nvml.h"

#include <cstddef>
#include <iterator>
#include <string_view>

namespace gcr::preload {
namespace {

// nvmlReturn_t
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlFunctionNotFound = 13;

struct RealNvml {
  int (*nvmlInit)() = nullptr;
  int (*nvmlInit_v2)() = nullptr;
  int (*nvmlInitWithFlags)(unsigned int flags) = nullptr;
};

constinit LoadedDriver<RealNvml, nvml_table> g_real_nvml;

template <class Function, class... Arguments>
int initialise(Function* RealNvml::*function, Arguments... arguments) {
  const RealNvml* const nvml = g_real_nvml.functions();
  if (nvml == nullptr || nvml->*function == nullptr) return kNvmlFunctionNotFound;
  const int result = (nvml->*function)(arguments...);
  if (result == kNvmlSuccess) nvml_was_initialised();
  return result;
}

}  // namespace
}  // namespace gcr::preload

extern "C" {

[[gnu::visibility("default")]] int nvmlInit() {
  return gcr::preload::initialise(&gcr::preload::RealNvml::nvmlInit);
}
[[gnu::visibility("default")]] int nvmlInit_v2() {
  return gcr::preload::initialise(&gcr::preload::RealNvml::nvmlInit_v2);
}
[[gnu::visibility("default")]] int nvmlInitWithFlags(unsigned int flags) {
  return gcr::preload::initialise(&gcr::preload::RealNvml::nvmlInitWithFlags, flags);
}
}

namespace gcr::preload {
namespace {

const FunctionRow kNvmlRows[] = {
    {"nvmlInit", "nvmlInit", 0, Flavour::kLegacy, reinterpret_cast<void*>(&nvmlInit),
     offsetof(RealNvml, nvmlInit)},
    {"nvmlInitWithFlags", "nvmlInitWithFlags", 0, Flavour::kLegacy,
     reinterpret_cast<void*>(&nvmlInitWithFlags), offsetof(RealNvml, nvmlInitWithFlags)},
    {"nvmlInit_v2", "nvmlInit_v2", 0, Flavour::kLegacy, reinterpret_cast<void*>(&nvmlInit_v2),
     offsetof(RealNvml, nvmlInit_v2)},
};
constexpr std::uint16_t kNvmlBySymbol[] = {0, 1, 2};
static_assert(std::size(kNvmlRows) == std::size(kNvmlBySymbol));
constexpr std::string_view kNvmlSonames[] = {"libnvidia-ml.so.1"};

constinit const FunctionTable kNvmlTable{kNvmlRows, kNvmlBySymbol, {}, kNvmlSonames};

}  // namespace

const FunctionTable& nvml_table() { return kNvmlTable; }

const void* real_nvml() { return g_real_nvml.functions(); }

}  // namespace gcr::preload
