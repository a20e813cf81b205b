// Calls past the gate: references of loaded objects that are bound to a driver's own functions.
//
// The loader binds a reference to the first definition in its object's scope. For most objects that
// is the shim, because this library is preloaded. An object that was opened with RTLD_DEEPBIND has
// its own dependencies first, and so the driver; and one in a namespace of its own (dlmopen) has
// only those, and so another copy of the driver.
//
// When a driver is found, its symbol table is made to name the shims: every later search of the
// loader's that ends there gives a shim, whoever makes it, when and how. What was bound before is
// bound to the shims by look(). That finds also what cannot be: functions without a row that are
// called all the same, words that the kernel does not let be written, other copies of the driver.
// Nobody can find what a program has copied into memory of its own.
#pragma once

#include <span>

#include "preload/elf_object.h"
#include "preload/function_table.h"

namespace gcr::preload::bindings {

/// A function of the C library's, and what this library has in its place.
struct Replaced {
  const char* name;
  void* ours;
};

enum class Found {
  kNothing,
  kBroughtBack,  ///< all that was bound past the gate is now bound to the shims
  kPastTheGate,  ///< something cannot be brought back
};

/// Makes the symbol table of a loaded driver name the shims; `addresses` are the driver's own.
/// Inside visit_objects; may be repeated. Where the kernel does not let it, look() alone must do.
void answer_with_shims(const FunctionTable& table, const void* addresses, const ElfObject& driver,
                       const dl_phdr_info& info);

/// From now on, objects may be bound to the C library's functions, past `replaced`, which lives as
/// long as the process; look() brings them back too. As look(); may be repeated.
void expect_deep_binding(std::span<const Replaced> replaced);

/// Looks at everything that is loaded, in all namespaces: some 20 us for each object that was
/// loaded since all was well, 1 to 2 us for each other, and 2 us in all if nothing was. Writes into
/// `culprit` (empty: this look does not count as the last) a sentence about the first object of
/// which the result is true. Any thread that may wait for the loader's list of objects; does not
/// allocate.
Found look(std::span<char> culprit);

}  // namespace gcr::preload::bindings
