// Replaces dlsym and dlvsym: a caller that looks up a driver function with a shim gets the shim, if
// it would get the driver's own function without this library. A driver function that the tables do
// not know is not found.
//
// Replaces dlopen and dlmopen: for an object that is opened with RTLD_DEEPBIND, its own
// dependencies come before this library, so the symbol table of a loaded driver is changed to name
// the shims before (preload/bindings.h). A driver that is loaded together with the object is found
// at the next lookup; until then only the object's constructors can have run.
//
// All other lookups go to the C library's function by a jump: for RTLD_NEXT and RTLD_DEFAULT it
// derives the search order from its return address, which must be the caller's. A name that does
// not begin like a function of CUDA, HIP or NVML costs one or two compared bytes and that jump.
//
// The C library's functions are found in its symbol table, because any reference to them in this
// library, versioned or not, would be bound to its own definitions. That first search calls no
// other function: dlsym may be called before anything is initialised, including a sanitizer's
// replacements for functions of the C library.
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <type_traits>

#include "preload/bindings.h"
#include "preload/cuda/nvml.h"
#include "preload/cuda/real_driver.h"
#include "preload/elf_object.h"
#include "preload/hip/real_hip.h"

#ifndef __x86_64__
#error "the entries are written for x86-64"
#endif

namespace gcr::preload {
namespace {

using Dlsym = void* (*)(void* handle, const char* name);
using Dlvsym = void* (*)(void* handle, const char* name, const char* version);
using Dlopen = void* (*)(const char* file, int mode);
using Dlmopen = void* (*)(Lmid_t space, const char* file, int mode);

/// Tells the entry what to do next: return `address` if `decided`, else jump to the C library.
/// Returned in rax and dl.
struct Answer {
  void* address;
  bool decided;
};

constexpr Answer kAskCLibrary{nullptr, false};

static_assert(RTLD_DEEPBIND == 8);  // the value in the assembly of the entries

/// A function with a shim, and the driver's own address; null if no loaded driver has it.
struct Interposed {
  const FunctionRow* row = nullptr;
  void* real = nullptr;
};

/// Finds all loaded drivers, so that their symbol tables name the shims from now on.
void find_drivers() {
  real_driver();
  real_hip();
}

/// Finds the row and the driver's address of `name`; without a row, `name` is not interposed.
Interposed find_interposed(const char* name) {
  if (const FunctionRow* row = find_shimmed(cuda_table(), name)) {
    return {row, address_of(real_driver(), *row)};
  }
  if (const FunctionRow* row = find_shimmed(hip_table(), name)) {
    return {row, address_of(real_hip(), *row)};
  }
  if (const FunctionRow* row = find_shimmed(nvml_table(), name)) {
    return {row, address_of(real_nvml(), *row)};
  }
  return {};
}

/// Whether `found`, the definition of `name`, is a driver function that the driver's table does not
/// know. A null `found` stands for any definition.
bool is_unknown(const char* name, const void* found) {
  return is_unknown_export(cuda_table(), name, found) ||
         is_unknown_export(hip_table(), name, found);
}

/// The next definition of `name` after this library in load order; if there is none (because this
/// library was not preloaded), the first one anywhere.
void* find_after_this_library(const char* name) {
  void* first = nullptr;
  bool passed_us = false;
  for (const link_map* map = _r_debug.r_map; map != nullptr; map = map->l_next) {
    if (map->l_ld == _DYNAMIC) {
      passed_us = true;
      continue;
    }
    void* const found = ElfObject(map->l_addr, map->l_ld).find_function(name);
    if (found != nullptr && passed_us) return found;
    if (first == nullptr) first = found;
  }
  return first;
}

}  // namespace

extern "C" {

void* gcr_preload_first_dlsym(void* handle, const char* name);
void* gcr_preload_first_dlvsym(void* handle, const char* name, const char* version);
void* gcr_preload_first_dlopen(const char* file, int mode);
void* gcr_preload_first_dlmopen(Lmid_t space, const char* file, int mode);

// The targets of the entries' jumps: after the first call, the C library's functions.
constinit Dlsym gcr_preload_real_dlsym = &gcr_preload_first_dlsym;
constinit Dlvsym gcr_preload_real_dlvsym = &gcr_preload_first_dlvsym;
constinit Dlopen gcr_preload_real_dlopen = &gcr_preload_first_dlopen;
constinit Dlmopen gcr_preload_real_dlmopen = &gcr_preload_first_dlmopen;

/// Not 0 if an object was opened with RTLD_DEEPBIND since the last dlsym or dlvsym.
constinit unsigned char gcr_preload_opened_deep = 0;

void gcr_preload_find_real_functions() {
  const auto find = [](auto* function, const char* name) {
    __atomic_store_n(function,
                     reinterpret_cast<std::remove_reference_t<decltype(*function)>>(
                         find_after_this_library(name)),
                     __ATOMIC_RELAXED);
  };
  find(&gcr_preload_real_dlsym, "dlsym");
  find(&gcr_preload_real_dlvsym, "dlvsym");
  find(&gcr_preload_real_dlopen, "dlopen");
  find(&gcr_preload_real_dlmopen, "dlmopen");
}

void gcr_preload_before_deep_open();
Answer gcr_preload_choose_dlsym(void* handle, const char* name, const void* caller);
Answer gcr_preload_choose_dlvsym(void* handle, const char* name, const char* version);
}

namespace {

/// Finds the C library's functions while the process has one thread and loads nothing, because the
/// search walks the list of objects without a lock.
[[gnu::constructor]] void find_real_functions_early() {
  gcr_preload_find_real_functions();
  find_drivers();
}

/// Functions that an object opened with RTLD_DEEPBIND binds to the C library instead of this
/// library.
const bindings::Replaced kReplaced[] = {
    {"dlsym", reinterpret_cast<void*>(&dlsym)},     {"dlvsym", reinterpret_cast<void*>(&dlvsym)},
    {"dlopen", reinterpret_cast<void*>(&dlopen)},   {"dlmopen", reinterpret_cast<void*>(&dlmopen)},
    {"syscall", reinterpret_cast<void*>(&syscall)},
};

void scan_after_deep_open() {
  if (__atomic_exchange_n(&gcr_preload_opened_deep, 0, __ATOMIC_ACQ_REL) == 0) return;
  find_drivers();
  bindings::scan({});
}

/// Continues a search that ended at this library's shim of a function that no loaded driver has:
/// without this library it would not be found, so it must not be found. dlerror then names this
/// library, not the caller.
Answer search_after_this_library(const char* name) {
  return {gcr_preload_real_dlsym(RTLD_NEXT, name), true};
}

/// The first definition in an object that was loaded after the caller's; null if there is none.
/// Unlike the C library, also searches objects that another object opened locally.
void* find_next(const char* name, const void* caller) {
  void* found = nullptr;
  bool passed_caller = false;
  visit_objects([&](const ElfObject& object, const dl_phdr_info& info) {
    if (!passed_caller) {
      passed_caller = contains(info, caller);
      return false;
    }
    found = object.find_function(name);
    return found != nullptr;
  });
  return found;
}

/// Returns null and sets dlerror, by making the C library look up a name that no object has.
template <class Ask>
Answer withhold(const char* name, const Ask& ask) {
  note_withheld(name);
  char reason[256];
  std::snprintf(reason, sizeof(reason),
                "%.128s (libgcr-preload withholds driver functions that it does not know)", name);
  return {ask(reason), true};
}

}  // namespace

void gcr_preload_before_deep_open() {
  const int saved_errno = errno;
  find_drivers();
  bindings::expect_deep_binding(kReplaced);
  __atomic_store_n(&gcr_preload_opened_deep, 1, __ATOMIC_RELEASE);
  errno = saved_errno;
}

Answer gcr_preload_choose_dlsym(void* handle, const char* name, const void* caller) {
  scan_after_deep_open();
  const auto [row, real] = find_interposed(name);
  if (row == nullptr && !may_be_of_driver(name)) return kAskCLibrary;
  void* const found =
      handle == RTLD_NEXT ? find_next(name, caller) : gcr_preload_real_dlsym(handle, name);
  // The caller's search order may have other definitions than this library's.
  if (found == nullptr && (row != nullptr || handle != RTLD_DEFAULT)) return kAskCLibrary;
  if (row == nullptr) {
    if (!is_unknown(name, found)) return kAskCLibrary;
    return withhold(name,
                    [&](const char* reason) { return gcr_preload_real_dlsym(handle, reason); });
  }
  if (found == real) return {row->shim, true};
  // The C library would not have searched the driver.
  if (found == row->shim && real != nullptr && handle == RTLD_NEXT) return {row->shim, true};
  if (found == row->shim && real == nullptr) return search_after_this_library(name);
  return kAskCLibrary;
}

Answer gcr_preload_choose_dlvsym(void* handle, const char* name, const char* version) {
  scan_after_deep_open();
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) return kAskCLibrary;
  const auto [row, real] = find_interposed(name);
  if (row == nullptr && !may_be_of_driver(name)) return kAskCLibrary;
  void* const found = gcr_preload_real_dlvsym(handle, name, version);
  if (found == nullptr) return kAskCLibrary;
  if (row != nullptr) return found == real ? Answer{row->shim, true} : kAskCLibrary;
  if (!is_unknown(name, found)) return kAskCLibrary;
  return withhold(
      name, [&](const char* reason) { return gcr_preload_real_dlvsym(handle, reason, version); });
}

}  // namespace gcr::preload

// The entries. They examine names that begin with "cu", "hi", "nv", "__h" or "_Z", and all names
// after an object was opened with RTLD_DEEPBIND. Arguments: rdi handle, rsi name, rdx version; the
// return address is the caller's. They are saved across the call of the choosing function, which
// for dlsym gets that return address as its third argument.
asm(R"(
    .text
    .macro gcr_save_arguments
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx
    .cfi_adjust_cfa_offset 8
    .endm
    .macro gcr_restore_arguments
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    .endm

    .macro gcr_entry name choose real save_third
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
    cmpb $0, gcr_preload_opened_deep(%rip)
    jne 4f
    movzbl (%rsi), %eax
    cmp $0x63, %al
    jne 2f
    cmpb $0x75, 1(%rsi)
    je 4f
    jmp *\real(%rip)
2:  cmp $0x68, %al
    jne 3f
    cmpb $0x69, 1(%rsi)
    je 4f
    jmp *\real(%rip)
3:  cmp $0x6e, %al
    jne 5f
    cmpb $0x76, 1(%rsi)
    je 4f
    jmp *\real(%rip)
5:  cmp $0x5f, %al
    jne 1f
    movzbl 1(%rsi), %eax
    cmp $0x5a, %al
    je 4f
    cmp $0x5f, %al
    jne 1f
    cmpb $0x68, 2(%rsi)
    jne 1f
4:  gcr_save_arguments
    .if \save_third == 0
    mov 24(%rsp), %rdx
    .endif
    call \choose
    mov %edx, %ecx
    gcr_restore_arguments
    test %cl, %cl
    je 1f
    ret
1:  jmp *\real(%rip)
    .cfi_endproc
    .size \name, . - \name
    .endm

    gcr_entry dlsym gcr_preload_choose_dlsym gcr_preload_real_dlsym 0
    gcr_entry dlvsym gcr_preload_choose_dlvsym gcr_preload_real_dlvsym 1

    .macro gcr_open_entry name real mode
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
    test $8, \mode
    jz 1f
    gcr_save_arguments
    call gcr_preload_before_deep_open
    gcr_restore_arguments
1:  jmp *\real(%rip)
    .cfi_endproc
    .size \name, . - \name
    .endm

    gcr_open_entry dlopen gcr_preload_real_dlopen %esi
    gcr_open_entry dlmopen gcr_preload_real_dlmopen %edx

    .macro gcr_first name real
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
    gcr_save_arguments
    call gcr_preload_find_real_functions
    gcr_restore_arguments
    jmp *\real(%rip)
    .cfi_endproc
    .size \name, . - \name
    .endm

    .irp function dlsym, dlvsym, dlopen, dlmopen
    .globl gcr_preload_first_\function
    .hidden gcr_preload_first_\function
    .endr
    gcr_first gcr_preload_first_dlsym gcr_preload_real_dlsym
    gcr_first gcr_preload_first_dlvsym gcr_preload_real_dlvsym
    gcr_first gcr_preload_first_dlopen gcr_preload_real_dlopen
    gcr_first gcr_preload_first_dlmopen gcr_preload_real_dlmopen
)");
