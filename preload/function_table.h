// A driver's functions as data: names, versions, the shim of each, and where the driver's own
// address is kept. The table is a constant without initialisation at run time, so it can be used
// before any constructor has run. Each runtime has one (preload/cuda, preload/hip).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// For a row's policy (see driver_api.def): `yes` if its functions have a shim, or if that shim
// calls gcr::preload::tracked::<symbol>; else `no`.
#define GCR_IF_SHIM_kGated(yes, no) yes
#define GCR_IF_SHIM_kCopies(yes, no) yes
#define GCR_IF_SHIM_kTracked(yes, no) yes
#define GCR_IF_SHIM_kWaits(yes, no) yes
#define GCR_IF_SHIM_kLookup(yes, no) yes
#define GCR_IF_SHIM_kPassed(yes, no) no
#define GCR_IF_TRACKED_kGated(yes, no) no
#define GCR_IF_TRACKED_kCopies(yes, no) no
#define GCR_IF_TRACKED_kTracked(yes, no) yes
#define GCR_IF_TRACKED_kWaits(yes, no) yes
#define GCR_IF_TRACKED_kLookup(yes, no) no
#define GCR_IF_TRACKED_kPassed(yes, no) no

namespace gcr::preload {

class ElfObject;

/// Which stream a function uses for stream 0.
enum class Flavour : unsigned char {
  kInvalid = 0,
  kLegacy,  ///< the legacy default stream; also functions that have nothing to do with streams
  kPtds,    ///< the calling thread's default stream, in a synchronous function
  kPtsz,    ///< the calling thread's default stream, in a function with a stream parameter
  kSpt,     ///< the calling thread's default stream, in HIP
};

/// One row of driver_api.def or hip_api.def.
struct FunctionRow {
  const char* symbol;
  const char* public_name;
  int since;
  Flavour flavour;
  void* shim;                     ///< null for kPassed
  std::size_t real_offset_bytes;  ///< of the driver's own address in RealDriver or RealHip
};

struct FunctionTable {
  std::span<const FunctionRow> rows;              ///< in the order of the .def file
  std::span<const std::uint16_t> by_symbol;       ///< row numbers in the order of symbols
  std::span<const std::string_view> without_row;  ///< no_row.txt, in the order of symbols
  std::span<const std::string_view> sonames;  ///< a loaded object with one of them is the driver
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

/// The row of an exported symbol, null if it has no shim. Any thread; neither locks nor allocates.
const FunctionRow* find_shimmed(const FunctionTable& table, const char* symbol);

/// The driver's address for a row, or null. `addresses` are null while no driver is loaded.
void* address_of(const void* addresses, const FunctionRow& row);

/// The row whose shim answers a lookup of a public name for which the driver returned `address`:
/// the row with that address or that shim, under any name. If there is none (some drivers' lookups
/// return other addresses than their symbol tables), the newest row of that name and flavour that
/// is not newer than `version` and that the driver has. Null: there is no shim for it. Any thread;
/// neither locks nor allocates.
const FunctionRow* find_looked_up(const FunctionTable& table, const void* addresses,
                                  const char* public_name, int version, bool thread_stream,
                                  void* address);

/// Whether a public name for which find_looked_up() returned null is known to need no shim. An
/// unknown function might submit work or map memory behind a closed gate, so it is withheld from
/// the application. Any thread; neither locks nor allocates.
bool lookup_needs_no_shim(const FunctionTable& table, std::string_view public_name);

/// Counts a lookup that was withheld, and logs the function's name. Any thread; does not allocate.
void note_withheld(const char* name);
unsigned withheld_lookups();

/// Whether `name` begins like the functions of a driver. Names of other libraries may too (cuFile,
/// for example); the object that defines them tells the difference.
bool may_be_of_driver(std::string_view name);

/// Whether the table knows the exported symbol: it has a row, or is listed as needing none.
bool is_known(const FunctionTable& table, std::string_view symbol);

/// Whether a loaded object is the driver, by its SONAME.
bool is_driver(const FunctionTable& table, const ElfObject& object);

/// Whether the loaded driver exports `symbol` at `address` (null: at any address) and the table
/// does not know it. Any thread; may take the loader's lock.
bool is_unknown_export(const FunctionTable& table, const char* symbol, const void* address);

/// Finds a loaded driver by its SONAME, reads its addresses, prevents its unloading, and binds
/// existing references to the shims (bindings.h). False if none is loaded. Any thread, also several
/// concurrently: they store the same values, so the library needs no lock that it would hold
/// together with the loader's.
bool find_driver(const FunctionTable& table, void* addresses);

/// A driver's own functions, behind the shims. `Real` has a pointer per row, under the exported
/// name; null where this driver lacks the function. They are read from the symbol table of the
/// loaded object: not through dlsym, which returns shims.
template <class Real, const FunctionTable& (*kTable)()>
class LoadedDriver {
 public:
  /// Null while no driver is loaded. Any thread. The first call that finds a driver may take the
  /// loader's lock, later ones are one load. The result stays valid for the life of the process.
  const Real* functions() {
    const Real* const known = found_.load(std::memory_order_acquire);
    return known != nullptr ? known : find();
  }

  /// Makes tracked shims only call the driver, as gated ones do. For the child of a fork, where the
  /// driver refuses all work: the application then gets the driver's own errors.
  void leave_calls_alone() { left_alone_.store(true, std::memory_order_relaxed); }
  bool are_calls_left_alone() const { return left_alone_.load(std::memory_order_relaxed); }

 private:
  [[gnu::cold, gnu::noinline]] const Real* find() {
    if (!find_driver(kTable(), &addresses_)) return nullptr;
    found_.store(&addresses_, std::memory_order_release);
    return &addresses_;
  }

  std::atomic<const Real*> found_{nullptr};
  std::atomic<bool> left_alone_{false};
  Real addresses_;
};

}  // namespace gcr::preload
