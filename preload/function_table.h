// A driver's functions as data: names, versions, the shim that stands in for each, and where the
// driver's own address is kept. Constant; no initialisation at run time, so it can be used before
// any constructor has run. Each runtime has one (preload/cuda, preload/hip).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace gcr::preload {

class ElfObject;

/// What stands between the application and one driver function.
enum class Policy : unsigned char {
  kInvalid = 0,
  kGated,    ///< the shim enters the gate and calls the driver
  kCopies,   ///< as kGated; where the driver refuses, memory is opened to it, and it is asked again
  kTracked,  ///< the shim enters the gate and calls gcr::preload::tracked::<symbol>
  kWaits,    ///< the shim calls gcr::preload::tracked::<symbol> without entering the gate
  kLookup,   ///< the shim answers with shims
  kPassed,   ///< no shim
};

/// What a function takes stream 0 for.
enum class Flavour : unsigned char {
  kInvalid = 0,
  kLegacy,  ///< the legacy default stream; also functions that have nothing to do with streams
  kPtds,    ///< the calling thread's default stream, in a synchronous function
  kPtsz,    ///< the same, in a function that names a stream
  kSpt,     ///< the same, in HIP
};

/// One row of driver_api.def or hip_api.def.
struct FunctionRow {
  const char* symbol;
  const char* public_name;
  int since;
  Flavour flavour;
  Policy policy;
  void* shim;                     ///< null for kPassed
  std::size_t real_offset_bytes;  ///< of the driver's own address among its addresses
};

struct FunctionTable {
  std::span<const FunctionRow> rows;              ///< in the order of the .def file
  std::span<const std::uint16_t> by_symbol;       ///< row numbers in the order of symbols
  std::span<const std::string_view> without_row;  ///< no_row.txt, in the order of symbols
  std::span<const std::string_view> sonames;      ///< of the libraries that may be the driver
};

template <std::size_t kCount>
constexpr auto order_by_symbol(const std::string_view (&symbols)[kCount]) {
  std::array<std::uint16_t, kCount> order{};
  for (std::size_t i = 0; i < kCount; ++i) order[i] = static_cast<std::uint16_t>(i);
  std::sort(order.begin(), order.end(),
            [&](std::uint16_t a, std::uint16_t b) { return symbols[a] < symbols[b]; });
  return order;
}

template <std::size_t kCount>
constexpr auto in_order(const std::string_view (&symbols)[kCount]) {
  std::array<std::string_view, kCount> ordered{};
  std::copy(std::begin(symbols), std::end(symbols), ordered.begin());
  std::sort(ordered.begin(), ordered.end());
  return ordered;
}

/// The row of an exported symbol that has a shim, or null. Any thread; neither locks nor allocates.
const FunctionRow* find_shimmed(const FunctionTable& table, const char* symbol);

/// The driver's address for a row, or null; `addresses` are the driver's, null while none is
/// loaded.
void* address_of(const void* addresses, const FunctionRow& row);

/// The row whose shim answers a lookup of a public name for which the driver gave `address`: the
/// row with that very address, or that very shim, whatever it is called; otherwise, for a driver
/// whose lookup gives other addresses than its symbol table, the newest row of that name and
/// flavour that is not newer than `version` and that the driver has. Null: there is no shim for it.
/// Any thread; neither locks nor allocates.
const FunctionRow* find_looked_up(const FunctionTable& table, const void* addresses,
                                  const char* public_name, int version, bool thread_stream,
                                  void* address);

/// Whether a function that is not found above, by the public name that a lookup is asked for, needs
/// no shim. What the table does not know at all may submit work or map memory behind a closed gate,
/// so it is withheld from the application. Any thread; neither locks nor allocates.
bool lookup_needs_no_shim(const FunctionTable& table, std::string_view public_name);

/// Whether a driver's functions begin like that. Names of other libraries that do (cuFile, say) are
/// told by where they are found.
bool may_be_of_driver(std::string_view name);

/// Whether the table says of that exported symbol what it is: in a row, or that it needs none.
bool is_known(const FunctionTable& table, std::string_view symbol);

/// Whether a loaded object is the driver, by its SONAME.
bool is_driver(const FunctionTable& table, const ElfObject& object);

/// Whether the function of that name at `address` (null: wherever) is one that the loaded driver
/// exports and the table does not know. Any thread; may take the loader's lock.
bool is_unknown_export(const FunctionTable& table, const char* symbol, const void* address);

/// Reads the addresses of a loaded driver, known by its SONAME, keeps it from being unloaded, and
/// binds to the shims what was bound to it (bindings.h). False if none is loaded. Any thread,
/// several at the same time: they store the same values, so that the library never holds a lock
/// together with the loader's.
bool find_driver(const FunctionTable& table, void* addresses);

}  // namespace gcr::preload
