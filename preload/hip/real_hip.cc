#include "preload/hip/real_hip.h"

#include <iterator>
#include <string_view>

#include "preload/hip/shims.h"

namespace gcr::preload {
namespace {

const FunctionRow kHipRows[] = {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  {#symbol,                                                                                 \
   #public_name,                                                                            \
   since,                                                                                   \
   Flavour::flavour,                                                                        \
   GCR_IF_SHIM_##policy(reinterpret_cast<void*>(&symbol), nullptr),                         \
   offsetof(RealHip, symbol)},
#include "preload/hip/hip_api.def"
};

constexpr std::string_view kHipSymbols[] = {
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) #symbol,
#include "preload/hip/hip_api.def"
};

constexpr auto kHipBySymbol = order_by_symbol(kHipSymbols);
static_assert(std::size(kHipRows) == std::size(kHipBySymbol));

constexpr std::string_view kHipNoRow[] = {
#define GCR_NO_ROW(symbol) #symbol,
#include "preload/hip_no_row.inc"
};

constexpr auto kHipWithoutRow = in_order(kHipNoRow);

constexpr std::string_view kHipSonames[] = {"libamdhip64.so.5", "libamdhip64.so.6",
                                            "libamdhip64.so.7"};

constinit const FunctionTable kHipTable{kHipRows, kHipBySymbol, kHipWithoutRow, kHipSonames};

}  // namespace

const FunctionTable& hip_table() { return kHipTable; }

}  // namespace gcr::preload
