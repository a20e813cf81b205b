#include "preload/cuda/driver_table.h"

#include <iterator>
#include <string_view>

#include "preload/cuda/real_driver.h"
#include "preload/cuda/shims.h"

namespace gcr::preload {
namespace {

#define GCR_ADDRESS_kGated(symbol) reinterpret_cast<void*>(&symbol)
#define GCR_ADDRESS_kCopies(symbol) reinterpret_cast<void*>(&symbol)
#define GCR_ADDRESS_kTracked(symbol) reinterpret_cast<void*>(&symbol)
#define GCR_ADDRESS_kWaits(symbol) reinterpret_cast<void*>(&symbol)
#define GCR_ADDRESS_kLookup(symbol) reinterpret_cast<void*>(&symbol)
#define GCR_ADDRESS_kPassed(symbol) nullptr

const FunctionRow kRows[] = {
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

constexpr auto kBySymbol = order_by_symbol(kSymbols);
static_assert(std::size(kRows) == std::size(kBySymbol));

constexpr std::string_view kNoRow[] = {
#define GCR_NO_ROW(symbol) #symbol,
#include "preload/cuda_no_row.inc"
};

constexpr auto kWithoutRow = in_order(kNoRow);

constexpr std::string_view kSonames[] = {kCudaSoname};

constinit const FunctionTable kTable{kRows, kBySymbol, kWithoutRow, kSonames};

}  // namespace

const FunctionTable& cuda_table() { return kTable; }

}  // namespace gcr::preload
