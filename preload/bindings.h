// Calls past the gate: references of loaded objects that are bound to a driver's own functions.
//
// The loader binds a reference to the first definition in its object's scope. For most objects that
// is the shim, because this library is preloaded. For an object that was opened with RTLD_DEEPBIND,
// its own dependencies come first, and so the driver; for one in a separate namespace (dlmopen),
// there are only those, and so another copy of the driver.
//
// When a driver is found, its symbol table is changed to name the shims: every later search of the
// loader that ends there returns a shim. References that were bound before are bound to the shims
// by scan(). It also reports what it cannot fix: calls of functions without a row, references in
// memory that the kernel does not let it write, other copies of the driver. It cannot find
// addresses that a program has copied into its own memory.
#pragma once

#include <span>

#include "preload/elf_object.h"
#include "preload/function_table.h"

namespace gcr::preload::bindings {

/// A function of the C library and this library's replacement for it.
struct Replaced {
  const char* name;
  void* ours;
};

enum class Found {
  kNothing,
  kRebound,      ///< all references that bypassed the gate are now bound to the shims
  kPastTheGate,  ///< a reference that bypasses the gate cannot be rebound
};

/// Changes the symbol table of a loaded driver to name the shims; `addresses` are the driver's own.
/// Call inside visit_objects(); may be repeated. If the kernel does not permit it, only scan()
/// binds references to the shims.
void redirect_to_shims(const FunctionTable& table, const void* addresses, const ElfObject& driver,
                       const dl_phdr_info& info);

/// Makes scan() also rebind references to the C library's functions in `replaced`, which must live
/// as long as the process. Call it before objects are opened with RTLD_DEEPBIND. Threads as scan();
/// may be repeated.
void expect_deep_binding(std::span<const Replaced> replaced);

/// Scans all loaded objects, in all namespaces. Costs some 20 us per object that was loaded since
/// the last clean scan, 1 to 2 us per other object, and 2 us in all if nothing was loaded. Writes a
/// sentence about the first object that determined the result to `culprit`, unless that is empty.
/// Any thread that may wait for the loader's lock; does not allocate.
Found scan(std::span<char> culprit);

}  // namespace gcr::preload::bindings
