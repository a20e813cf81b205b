#include "preload/cuda/real_driver.h"

#include <iterator>
#include <string_view>

#include "preload/cuda/shims.h"

namespace gcr::preload {
namespace {

const FunctionRow kRows[] = {
#define GCR_DRIVER_FUNCTION(symbol, public_name, since, flavour, policy, params, args) \
  {#symbol,                                                                            \
   #public_name,                                                                       \
   since,                                                                              \
   Flavour::flavour,                                                                   \
   GCR_IF_SHIM_##policy(reinterpret_cast<void*>(&symbol), nullptr),                    \
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
