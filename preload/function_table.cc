#include "preload/function_table.h"

#include <dlfcn.h>

#include <cstring>

#include "preload/elf_object.h"

namespace gcr::preload {
namespace {

constexpr std::size_t kMaxPathBytes = 4096;

void store(void* addresses, const FunctionRow& row, void* address) {
  auto* slot = reinterpret_cast<void**>(static_cast<char*>(addresses) + row.real_offset_bytes);
  __atomic_store_n(slot, address, __ATOMIC_RELAXED);
}

/// Whether `a` answers a request better than `b`: first by the flavour asked for, then by age.
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

}  // namespace

const FunctionRow* find_shimmed(const FunctionTable& table, const char* symbol) {
  const std::string_view wanted = symbol;
  const auto at = std::lower_bound(
      table.by_symbol.begin(), table.by_symbol.end(), wanted,
      [&](std::uint16_t row, std::string_view name) { return table.rows[row].symbol < name; });
  if (at == table.by_symbol.end() || table.rows[*at].symbol != wanted) return nullptr;
  return with_shim(&table.rows[*at]);
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
    if (std::string_view(row.symbol).starts_with("_Z")) continue;  // nobody asks for these by name
    if (row.flavour != Flavour::kLegacy && !thread_stream) continue;
    if (is_better(row, best, thread_stream)) best = &row;
  }
  return with_shim(best);
}

bool find_driver(const FunctionTable& table, std::span<const std::string_view> sonames,
                 void* addresses) {
  char path[kMaxPathBytes] = "";
  const bool found = visit_objects([&](const ElfObject& object, const dl_phdr_info& info) {
    if (std::ranges::find(sonames, object.soname()) == sonames.end()) return false;
    for (const FunctionRow& row : table.rows) {
      store(addresses, row, object.find_function(row.symbol));
    }
    std::strncpy(path, info.dlpi_name, sizeof(path) - 1);
    return true;
  });
  // Kept open for good: the addresses are handed to the application and used by other threads.
  return found && dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}

}  // namespace gcr::preload
