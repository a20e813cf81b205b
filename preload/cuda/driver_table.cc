#include "preload/cuda/driver_table.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "preload/cuda/real_driver.h"
#include "preload/cuda/shims.h"

namespace gcr::preload {
namespace {

#define GCR_ADDRESS_kGated(symbol) reinterpret_cast<void*>(&symbol)
#define GCR_ADDRESS_kTracked(symbol) reinterpret_cast<void*>(&symbol)
#define GCR_ADDRESS_kWaits(symbol) reinterpret_cast<void*>(&symbol)
#define GCR_ADDRESS_kLookup(symbol) reinterpret_cast<void*>(&symbol)
#define GCR_ADDRESS_kPassed(symbol) nullptr

const DriverRow kRows[] = {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  {#symbol,                                                                            \
   #public_name,                                                                       \
   since,                                                                              \
   Flavour::flavour,                                                                   \
   Policy::policy,                                                                     \
   GCR_ADDRESS_##policy(symbol),                                                       \
   offsetof(RealDriver, symbol)},
#include "preload/cuda/driver_api.def"
};

constexpr std::string_view kSymbols[] = {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) #symbol,
#include "preload/cuda/driver_api.def"
};

constexpr std::size_t kRowCount = std::size(kSymbols);
static_assert(std::size(kRows) == kRowCount);

/// Row numbers in the order of their symbols.
constexpr auto kBySymbol = [] {
  std::array<std::uint16_t, kRowCount> order{};
  for (std::size_t i = 0; i < kRowCount; ++i) order[i] = static_cast<std::uint16_t>(i);
  std::sort(order.begin(), order.end(),
            [](std::uint16_t a, std::uint16_t b) { return kSymbols[a] < kSymbols[b]; });
  return order;
}();

bool wants_thread_stream(cuuint64_t flags) {
  return (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
}

/// Whether `a` answers a request better than `b`: first by the flavour asked for, then by age.
bool is_better(const DriverRow& a, const DriverRow* b, bool thread_stream) {
  if (b == nullptr) return true;
  const bool a_fits = (a.flavour != Flavour::kLegacy) == thread_stream;
  const bool b_fits = (b->flavour != Flavour::kLegacy) == thread_stream;
  if (a_fits != b_fits) return a_fits;
  return a.since > b->since;
}

}  // namespace

std::span<const DriverRow> driver_rows() { return kRows; }

const DriverRow* find_shimmed_symbol(const char* symbol) {
  const std::string_view wanted = symbol;
  const auto at = std::lower_bound(
      kBySymbol.begin(), kBySymbol.end(), wanted,
      [](std::uint16_t row, std::string_view name) { return kSymbols[row] < name; });
  if (at == kBySymbol.end() || kSymbols[*at] != wanted) return nullptr;
  const DriverRow& row = kRows[*at];
  return row.shim == nullptr ? nullptr : &row;
}

const DriverRow* find_looked_up(const char* public_name, int cuda_version, cuuint64_t flags,
                                void* address) {
  const RealDriver* driver = real_driver();
  if (driver == nullptr) return nullptr;
  const bool thread_stream = wants_thread_stream(flags);
  const DriverRow* best = nullptr;
  for (const DriverRow& row : kRows) {
    void* const real = driver->address_of(row);
    if (real == nullptr) continue;
    if (real == address) return row.shim == nullptr ? nullptr : &row;
    if (row.since > cuda_version || std::strcmp(row.public_name, public_name) != 0) continue;
    if (row.flavour != Flavour::kLegacy && !thread_stream) continue;
    if (is_better(row, best, thread_stream)) best = &row;
  }
  return best == nullptr || best->shim == nullptr ? nullptr : best;
}

}  // namespace gcr::preload
