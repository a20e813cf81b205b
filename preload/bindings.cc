// A scan walks the loader's list of objects. For each object that is not known to be clean, it
// visits the words that the loader binds by symbol name. A word that holds a driver's address, or a
// replaced function of the C library, is rewritten to the shim; unbound words are only checked for
// unknown functions. The state after a scan that found nothing is kept, so that the next scan skips
// the same objects.
#include "preload/bindings.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "preload/log.h"

namespace gcr::preload::bindings {
namespace {

/// The addresses that a loaded object occupies.
struct Extent {
  ElfW(Addr) begin = 0;
  ElfW(Addr) end = 0;

  bool contains(ElfW(Addr) address) const { return address - begin < end - begin; }
};

Extent extent_of(const dl_phdr_info& info) {
  Extent extent{~ElfW(Addr){0}, 0};
  for (const ElfW(Phdr) & segment : segments_of(info)) {
    if (segment.p_type != PT_LOAD) continue;
    extent.begin = std::min(extent.begin, info.dlpi_addr + segment.p_vaddr);
    extent.end = std::max(extent.end, info.dlpi_addr + segment.p_vaddr + segment.p_memsz);
  }
  return extent;
}

/// A loaded driver.
struct KnownDriver {
  const FunctionTable* table = nullptr;  ///< null: this entry is unused
  ElfW(Addr) base = 0;
  const ElfW(Dyn) * dynamic = nullptr;
  Extent extent;
  bool names_shims = false;
};

// All but the atomics are used under the loader's lock (visit_objects).
constinit KnownDriver g_drivers[3] = {};  ///< CUDA, HIP, NVML
constinit Extent g_c_library = {};
constinit std::span<const Replaced> g_replaced;
/// Number of changes of the variables above.
constinit std::atomic<std::uint8_t> g_changes{0};
/// The state in which a scan found nothing: the number of objects, the loader's counts of loaded
/// and unloaded objects (lower halves), and g_changes. Objects are appended in load order, so while
/// nothing is unloaded, only later ones need a scan.
struct CleanScan {
  std::uint16_t objects;
  std::uint16_t loaded;
  std::uint16_t unloaded;
  std::uint8_t changes;
};
constinit std::atomic<CleanScan> g_last_clean{};
/// A symbol table has just changed. A reference that another thread was binding at that moment may
/// escape the next scan, so that scan does not become the last clean one.
constinit std::atomic<bool> g_changed_just_now{false};
static_assert(std::atomic<CleanScan>::is_always_lock_free);

/// Makes the part of an object's memory between two addresses writable while it lives.
class Writable {
 public:
  Writable(const dl_phdr_info& info, ElfW(Addr) begin, ElfW(Addr) end) {
    for (const ElfW(Phdr) & segment : segments_of(info)) {
      const ElfW(Addr) start = info.dlpi_addr + segment.p_vaddr;
      if (segment.p_type != PT_LOAD || begin < start || end > start + segment.p_filesz) continue;
      begin_ = page_of(begin);
      bytes_ = end - reinterpret_cast<ElfW(Addr)>(begin_);
      protection_ = PROT_READ | ((segment.p_flags & PF_W) != 0 ? PROT_WRITE : 0) |
                    ((segment.p_flags & PF_X) != 0 ? PROT_EXEC : 0);
      done_ = ::mprotect(begin_, bytes_, protection_ | PROT_WRITE) == 0;
    }
  }
  ~Writable() {
    if (done_) ::mprotect(begin_, bytes_, protection_);
  }
  Writable(const Writable&) = delete;
  Writable& operator=(const Writable&) = delete;
  explicit operator bool() const { return done_; }

 private:
  void* begin_ = nullptr;
  std::size_t bytes_ = 0;
  int protection_ = 0;
  bool done_ = false;
};

/// Calls `function` with each row that has a shim and a function in the driver, and with its
/// symbol.
template <class Function>
void for_each_shimmed(const FunctionTable& table, const void* addresses, const ElfObject& driver,
                      const Function& function) {
  for (const FunctionRow& row : table.rows) {
    if (row.shim == nullptr || address_of(addresses, row) == nullptr) continue;
    const ElfW(Sym)* symbol = driver.find_symbol(row.symbol);
    if (symbol != nullptr) function(row, const_cast<ElfW(Sym)*>(symbol));
  }
}

bool name_shims(const FunctionTable& table, const void* addresses, const ElfObject& driver,
                const dl_phdr_info& info) {
  Extent symbols{~ElfW(Addr){0}, 0};
  for_each_shimmed(table, addresses, driver, [&](const FunctionRow&, ElfW(Sym) * symbol) {
    const auto address = reinterpret_cast<ElfW(Addr)>(symbol);
    symbols.begin = std::min(symbols.begin, address);
    symbols.end = std::max(symbols.end, address + sizeof(*symbol));
  });
  const Writable writable(info, symbols.begin, symbols.end);
  if (!writable) return false;
  for_each_shimmed(table, addresses, driver, [&](const FunctionRow& row, ElfW(Sym) * symbol) {
    __atomic_store_n(&symbol->st_value, reinterpret_cast<ElfW(Addr)>(row.shim) - info.dlpi_addr,
                     __ATOMIC_RELEASE);
  });
  return true;
}

/// One scan of all loaded objects.
class Scan {
 public:
  explicit Scan(std::span<char> culprit) : culprit_(culprit) {}

  /// Scans the next object in load order. Returns true if the rest have not changed.
  bool operator()(const ElfObject& object, const dl_phdr_info& info);

  /// Returns the result; call it after the last object.
  Found end() const {
    if (found_ == Found::kNothing && !g_changed_just_now.exchange(false)) g_last_clean.store(now_);
    return found_;
  }

 private:
  bool begin(const dl_phdr_info& first);
  void scan_namespaces();
  void check(const Binding& binding);
  bool is_to_be_bound(const Binding& binding, ElfW(Addr) value) const;
  void check_uncalled(const Binding& binding);
  void check_unbound(const Binding& binding);
  void rebind(const Binding& binding, void* ours);
  void note(Found found, const char* path, const char* does, const char* what);

  std::span<char> culprit_;
  Found found_ = Found::kNothing;
  CleanScan now_{};
  std::uint16_t clean_objects_ = 0;  ///< number of first objects that need no scan
  bool passed_us_ = false;
  bool ours_come_first_ = true;  ///< no object before this library replaces the same functions
  const dl_phdr_info* info_ = nullptr;
  Extent extent_;
};

bool Scan::operator()(const ElfObject& object, const dl_phdr_info& info) {
  if (now_.objects == 0 && begin(info)) return true;
  ++now_.objects;
  extent_ = extent_of(info);
  if (extent_.contains(reinterpret_cast<ElfW(Addr)>(&g_drivers))) {
    passed_us_ = true;
    return false;
  }
  ours_come_first_ = ours_come_first_ &&
                     (passed_us_ || std::ranges::none_of(g_replaced, [&](const Replaced& replaced) {
                        return object.find_function(replaced.name) != nullptr;
                      }));
  if (now_.objects <= clean_objects_) return false;
  for (const KnownDriver& known : g_drivers) {
    if (known.table == nullptr || !is_driver(*known.table, object)) continue;
    if (known.base != info.dlpi_addr) {
      note(Found::kPastTheGate, info.dlpi_name, "is a second copy of", object.soname());
    }
    return false;
  }
  info_ = &info;
  object.visit_bindings([this](const Binding& binding) {
    check(binding);
    return false;
  });
  return false;
}

/// Prepares the scan at the first object. True: nothing was loaded or unloaded since the last clean
/// scan.
bool Scan::begin(const dl_phdr_info& info) {
  now_.loaded = static_cast<std::uint16_t>(info.dlpi_adds);
  now_.unloaded = static_cast<std::uint16_t>(info.dlpi_subs);
  now_.changes = g_changes.load();
  const CleanScan then = g_last_clean.load();
  const bool all_name_shims = std::ranges::all_of(
      g_drivers, [](const KnownDriver& d) { return d.table == nullptr || d.names_shims; });
  if (all_name_shims && then.unloaded == now_.unloaded && then.changes == now_.changes) {
    clean_objects_ = then.objects;
  }
  scan_namespaces();
  if (clean_objects_ == 0 || then.loaded != now_.loaded) return false;
  now_ = then;
  return true;
}

/// Reports drivers in other namespaces (dlmopen). Objects there call their own copy of the driver,
/// and those calls cannot be intercepted.
void Scan::scan_namespaces() {
  const r_debug* const own = &_r_debug;
  const r_debug_extended* space = nullptr;
  asm("" : "=r"(space) : "0"(own));  // from version 2 on, it is an r_debug_extended
  if (own->r_version < 2) return;
  space = space->r_next;
  for (; space != nullptr; space = space->r_next) {
    for (const link_map* map = space->base.r_map; map != nullptr; map = map->l_next) {
      const ElfObject object(map->l_addr, map->l_ld);
      for (const KnownDriver& known : g_drivers) {
        if (known.table == nullptr || !is_driver(*known.table, object)) continue;
        note(Found::kPastTheGate, map->l_name, "is a second copy (dlmopen) of", object.soname());
      }
    }
  }
}

void Scan::check(const Binding& binding) {
  const auto value = reinterpret_cast<ElfW(Addr)>(__atomic_load_n(binding.slot, __ATOMIC_RELAXED));
  if (extent_.contains(value)) {
    if (binding.is_call && !binding.is_defined()) check_uncalled(binding);
    return;
  }
  if (is_to_be_bound(binding, value)) return check_unbound(binding);
  for (const KnownDriver& known : g_drivers) {
    if (known.table == nullptr || !known.extent.contains(value)) continue;
    if (const FunctionRow* row = find_shimmed(*known.table, binding.name())) {
      rebind(binding, row->shim);
    } else if (may_be_of_driver(binding.name()) && !is_known(*known.table, binding.name())) {
      note(Found::kPastTheGate, info_->dlpi_name,
           "calls a driver function that this library does not know:", binding.name());
    }
    return;
  }
  if (!g_c_library.contains(value)) return;
  for (const Replaced& replaced : g_replaced) {
    if (std::strcmp(replaced.name, binding.name()) == 0) rebind(binding, replaced.ours);
  }
}

/// Whether the loader has not bound the reference yet, because it is still loading the object.
bool Scan::is_to_be_bound(const Binding& binding, ElfW(Addr) value) const {
  if (value == 0) return ELF64_ST_BIND(binding.symbol->st_info) != STB_WEAK;
  return info_->dlpi_addr != 0 && value < extent_.end - extent_.begin;
}

/// Checks a reference that the loader binds at its first call, which has not happened yet.
void Scan::check_uncalled(const Binding& binding) {
  for (const Replaced& replaced : g_replaced) {
    if (ours_come_first_ && std::strcmp(replaced.name, binding.name()) == 0 &&
        !is_read_only(*info_, binding.slot)) {
      store_pointer(binding.slot, replaced.ours, false);
    }
  }
  check_unbound(binding);
}

/// Checks a reference that is not bound yet. The loader will bind it, perhaps while the gate is
/// closed: to a shim, if there is one, else past the gate.
void Scan::check_unbound(const Binding& binding) {
  if (!may_be_of_driver(binding.name())) return;
  for (const KnownDriver& known : g_drivers) {
    if (known.table == nullptr || is_known(*known.table, binding.name())) continue;
    if (ElfObject(known.base, known.dynamic).find_function(binding.name()) == nullptr) continue;
    note(Found::kPastTheGate, info_->dlpi_name,
         "may call a driver function that this library does not know:", binding.name());
  }
}

void Scan::rebind(const Binding& binding, void* ours) {
  if (*binding.slot == ours) return;
  void* const page = page_of(reinterpret_cast<ElfW(Addr)>(binding.slot));
  const bool read_only = is_read_only(*info_, binding.slot);
  // If the page is not read-only yet, the loader is still binding this object and must be able to
  // write to it.
  const bool is_being_bound =
      read_only && ::madvise(page, kLoaderPageBytes, MADV_POPULATE_WRITE) == 0;
  const bool done = !is_being_bound && store_pointer(binding.slot, ours, read_only);
  note(done ? Found::kRebound : Found::kPastTheGate, info_->dlpi_name,
       done ? "called past the gate:" : "calls past the gate:", binding.name());
}

void Scan::note(Found found, const char* path, const char* does, const char* what) {
  if (found <= found_) return;
  found_ = found;
  const char* const object = path[0] == '\0' ? "the program" : path;
  if (!culprit_.empty()) {
    std::snprintf(culprit_.data(), culprit_.size(), "%s %s %s", object, does, what);
  }
  log_line("%s %s %s", object, does, what);
}

}  // namespace

void redirect_to_shims(const FunctionTable& table, const void* addresses, const ElfObject& driver,
                       const dl_phdr_info& info) {
  for (KnownDriver& known : g_drivers) {
    if (known.table != nullptr && known.table != &table) continue;
    known = {&table, info.dlpi_addr, dynamic_section(info), extent_of(info),
             name_shims(table, addresses, driver, info)};
    break;
  }
  g_changed_just_now.store(true);
  g_changes.fetch_add(1);
}

void expect_deep_binding(std::span<const Replaced> replaced) {
  visit_objects([&](const ElfObject& object, const dl_phdr_info& info) {
    if (!g_replaced.empty()) return true;
    if (std::strcmp(object.soname(), "libc.so.6") != 0) return false;
    g_c_library = extent_of(info);
    g_replaced = replaced;
    g_changes.fetch_add(1);
    return true;
  });
}

Found scan(std::span<char> culprit) {
  const int saved_errno = errno;
  Scan scanning(culprit);
  visit_objects(
      [&](const ElfObject& object, const dl_phdr_info& info) { return scanning(object, info); });
  errno = saved_errno;
  return scanning.end();
}

}  // namespace gcr::preload::bindings
