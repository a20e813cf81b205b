#include "preload/function_table.h"

#include <dlfcn.h>

#include <cstring>

#include "preload/bindings.h"
#include "preload/elf_object.h"
#include "preload/log.h"

namespace gcr::preload {
namespace {

constexpr std::size_t kMaxPathBytes = 4096;

constinit std::atomic<unsigned> g_withheld{0};

void store(void* addresses, const FunctionRow& row, void* address) {
  auto* slot = reinterpret_cast<void**>(static_cast<char*>(addresses) + row.real_offset_bytes);
  __atomic_store_n(slot, address, __ATOMIC_RELAXED);
}

/// Whether `a` answers a lookup better than `b`: first by the requested flavour, then by version.
bool is_better(const FunctionRow& a, const FunctionRow* b, bool thread_stream) {
  if (b == nullptr) return true;
  const bool a_fits = (a.flavour != Flavour::kLegacy) == thread_stream;
  const bool b_fits = (b->flavour != Flavour::kLegacy) == thread_stream;
  if (a_fits != b_fits) return a_fits;
  return a.since > b->since;
}

const FunctionRow* with_shim(const FunctionRow* row) {
  return row == nullptr || row->shim == nullptr ? nullptr : row;
}

/// The row of an exported symbol, or null.
const FunctionRow* find_row(const FunctionTable& table, std::string_view symbol) {
  const auto at = std::lower_bound(
      table.by_symbol.begin(), table.by_symbol.end(), symbol,
      [&](std::uint16_t row, std::string_view name) { return table.rows[row].symbol < name; });
  const bool found = at != table.by_symbol.end() && table.rows[*at].symbol == symbol;
  return found ? &table.rows[*at] : nullptr;
}

/// Whether `rest`, which follows the public name in an exported one, is only a version and flavour:
/// "", "_v2", "_ptsz", "_v2_ptsz", "_spt".
bool is_version_and_flavour(std::string_view rest) {
  for (const std::string_view flavour : {"_ptds", "_ptsz", "_spt"}) {
    if (rest.ends_with(flavour)) rest.remove_suffix(flavour.size());
  }
  return rest.empty() || (rest.size() == 3 && rest.starts_with("_v"));
}

}  // namespace

bool may_be_of_driver(std::string_view name) {
  const auto begins = [&](std::string_view prefix) {
    return name.size() > prefix.size() && name.starts_with(prefix) && name[prefix.size()] >= 'A' &&
           name[prefix.size()] <= 'Z';
  };
  return begins("cu") || begins("hip") || begins("__hip");
}

bool is_known(const FunctionTable& table, std::string_view symbol) {
  return find_row(table, symbol) != nullptr ||
         std::ranges::binary_search(table.without_row, symbol);
}

bool is_driver(const FunctionTable& table, const ElfObject& object) {
  return std::ranges::find(table.sonames, object.soname()) != table.sonames.end();
}

const FunctionRow* find_shimmed(const FunctionTable& table, const char* symbol) {
  return with_shim(find_row(table, symbol));
}

bool lookup_needs_no_shim(const FunctionTable& table, std::string_view public_name) {
  auto listed = std::ranges::lower_bound(table.without_row, public_name);
  for (; listed != table.without_row.end() && listed->starts_with(public_name); ++listed) {
    if (is_version_and_flavour(listed->substr(public_name.size()))) return true;
  }
  return std::ranges::any_of(table.rows, [&](const FunctionRow& row) {
    return row.shim == nullptr && (row.public_name == public_name || row.symbol == public_name);
  });
}

void note_withheld(const char* name) {
  g_withheld.fetch_add(1, std::memory_order_relaxed);
  log_line("%s is withheld: this library does not know that driver function", name);
}

unsigned withheld_lookups() { return g_withheld.load(std::memory_order_relaxed); }

bool is_unknown_export(const FunctionTable& table, const char* symbol, const void* address) {
  if (is_known(table, symbol)) return false;
  return visit_objects([&](const ElfObject& object, const dl_phdr_info&) {
    if (!is_driver(table, object)) return false;
    const void* const found = object.find_function(symbol);
    return found != nullptr && (address == nullptr || found == address);
  });
}

void* address_of(const void* addresses, const FunctionRow& row) {
  if (addresses == nullptr) return nullptr;
  return *reinterpret_cast<void* const*>(static_cast<const char*>(addresses) +
                                         row.real_offset_bytes);
}

const FunctionRow* find_looked_up(const FunctionTable& table, const void* addresses,
                                  const char* public_name, int version, bool thread_stream,
                                  void* address) {
  const FunctionRow* best = nullptr;
  for (const FunctionRow& row : table.rows) {
    void* const real = address_of(addresses, row);
    if (real == nullptr) continue;
    if (real == address || row.shim == address) return with_shim(&row);
    if (row.since > version || std::strcmp(row.public_name, public_name) != 0) continue;
    if (std::string_view(row.symbol).starts_with("_Z")) continue;  // not looked up by name
    if (row.flavour != Flavour::kLegacy && !thread_stream) continue;
    if (is_better(row, best, thread_stream)) best = &row;
  }
  return with_shim(best);
}

bool find_driver(const FunctionTable& table, void* addresses) {
  char path[kMaxPathBytes] = "";
  const bool found = visit_objects([&](const ElfObject& object, const dl_phdr_info& info) {
    if (!is_driver(table, object)) return false;
    for (const FunctionRow& row : table.rows) {
      void* const address = object.find_function(row.symbol);
      if (address == nullptr || address != row.shim) store(addresses, row, address);
    }
    bindings::redirect_to_shims(table, addresses, object, info);
    std::strncpy(path, info.dlpi_name, sizeof(path) - 1);
    return true;
  });
  // Never unloaded: the application and other threads keep using the addresses.
  if (!found || dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) == nullptr) return false;
  bindings::scan({});
  return true;
}

}  // namespace gcr::preload
