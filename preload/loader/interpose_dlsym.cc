// dlsym and dlvsym, exported: a caller that asks for a driver function with a shim gets the shim,
// if without this library it would get the driver's own function. A function of the driver that the
// tables do not know is not found.
//
// Everything else goes on to the C library's function by a jump: with RTLD_NEXT and RTLD_DEFAULT it
// looks at its return address to know whose search order to follow, so it must see the caller's.
// A name that begins like none of CUDA's, HIP's or NVML's functions costs one or two compared bytes
// and that jump.
//
// The C library's functions are found in its symbol table, since any reference of ours to dlsym or
// dlvsym, versioned or not, would be bound to our own. That first search calls no other function:
// dlsym may be called before anything is initialised, including a sanitizer's replacements for the
// C library's functions.
#include <dlfcn.h>

#include <cstdio>
#include <string_view>

#include "preload/cuda/driver_table.h"
#include "preload/cuda/nvml.h"
#include "preload/cuda/real_driver.h"
#include "preload/elf_object.h"
#include "preload/hip/hip_table.h"
#include "preload/hip/real_hip.h"
#include "preload/withheld.h"

#ifndef __x86_64__
#error "dlsym's entry is written for x86-64"
#endif

namespace {

using gcr::preload::ElfObject;
using gcr::preload::FunctionRow;

using Dlsym = void* (*)(void* handle, const char* name);
using Dlvsym = void* (*)(void* handle, const char* name, const char* version);

/// What the entry does next: returns `address` if `decided`, else jumps to the C library. Returned
/// in rax and dl.
struct Answer {
  void* address;
  bool decided;
};

constexpr Answer kAskCLibrary{nullptr, false};

/// A function with a shim, and the driver's own, null if no loaded driver has it.
struct Interposed {
  const FunctionRow* row = nullptr;
  void* real = nullptr;
};

/// Without a row: `name` is none of ours.
Interposed find_interposed(const char* name) {
  if (const FunctionRow* row = gcr::preload::find_shimmed(gcr::preload::cuda_table(), name)) {
    return {row, gcr::preload::address_of(gcr::preload::real_driver(), *row)};
  }
  if (const FunctionRow* row = gcr::preload::find_shimmed(gcr::preload::hip_table(), name)) {
    return {row, gcr::preload::address_of(gcr::preload::real_hip(), *row)};
  }
  if (const FunctionRow* row = gcr::preload::find_shimmed(gcr::preload::nvml_table(), name)) {
    return {row, gcr::preload::address_of(gcr::preload::real_nvml(), *row)};
  }
  return {};
}

/// Whether a driver's functions begin like that. Names of other libraries that do (cuFile, say) are
/// told by where they are found.
bool may_be_of_driver(std::string_view name) {
  const auto begins = [&](std::string_view prefix) {
    return name.size() > prefix.size() && name.starts_with(prefix) && name[prefix.size()] >= 'A' &&
           name[prefix.size()] <= 'Z';
  };
  return begins("cu") || begins("hip") || begins("__hip");
}

/// Whether what was found for `name` is a driver's function that its table does not know.
bool is_unknown(const char* name, const void* found) {
  return gcr::preload::is_unknown_export(gcr::preload::cuda_table(), name, found) ||
         gcr::preload::is_unknown_export(gcr::preload::hip_table(), name, found);
}

/// The next definition of `name` after this library in load order; the first one anywhere if there
/// is none (when this library was not preloaded).
void* find_beyond_this_library(const char* name) {
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

// Where the entries jump to: the C library's functions from the first call on.
constinit Dlsym gcr_preload_real_dlsym = &gcr_preload_first_dlsym;
constinit Dlvsym gcr_preload_real_dlvsym = &gcr_preload_first_dlvsym;

void gcr_preload_find_real_functions() {
  __atomic_store_n(&gcr_preload_real_dlsym,
                   reinterpret_cast<Dlsym>(find_beyond_this_library("dlsym")), __ATOMIC_RELAXED);
  __atomic_store_n(&gcr_preload_real_dlvsym,
                   reinterpret_cast<Dlvsym>(find_beyond_this_library("dlvsym")), __ATOMIC_RELAXED);
}

Answer gcr_preload_choose_dlsym(void* handle, const char* name, const void* caller);
Answer gcr_preload_choose_dlvsym(void* handle, const char* name, const char* version);
}

namespace {

/// While the process has one thread and loads nothing: the list of objects is walked without a
/// lock.
[[gnu::constructor]] void find_real_functions_early() { gcr_preload_find_real_functions(); }

/// The search ended at our own shim of a function that no loaded driver has: without this library
/// it would not be found, so it is not found now. dlerror then names this library, not the caller.
Answer look_beyond_us(const char* name) { return {gcr_preload_real_dlsym(RTLD_NEXT, name), true}; }

/// The first definition in an object loaded after the caller's, an object that the C library would
/// not have searched (opened locally by another) included. Null: there is none.
void* find_next(const char* name, const void* caller) {
  void* found = nullptr;
  bool passed_caller = false;
  gcr::preload::visit_objects([&](const ElfObject& object, const dl_phdr_info& info) {
    if (!passed_caller) {
      passed_caller = gcr::preload::contains(info, caller);
      return false;
    }
    found = object.find_function(name);
    return found != nullptr;
  });
  return found;
}

/// Null, and a dlerror that says why: the C library is asked for a name that nothing has.
template <class Ask>
Answer withhold(const char* name, const Ask& ask) {
  gcr::preload::note_withheld(name);
  char reason[256];
  std::snprintf(reason, sizeof(reason), "%.128s (libgcr-preload withholds what it does not know)",
                name);
  return {ask(reason), true};
}

}  // namespace

Answer gcr_preload_choose_dlsym(void* handle, const char* name, const void* caller) {
  const auto [row, real] = find_interposed(name);
  if (row == nullptr && !may_be_of_driver(name)) return kAskCLibrary;
  void* const found =
      handle == RTLD_NEXT ? find_next(name, caller) : gcr_preload_real_dlsym(handle, name);
  if (found == nullptr) return kAskCLibrary;
  if (row == nullptr) {
    if (!is_unknown(name, found)) return kAskCLibrary;
    return withhold(name,
                    [&](const char* reason) { return gcr_preload_real_dlsym(handle, reason); });
  }
  if (found == real) return {row->shim, true};
  if (found == row->shim && real == nullptr) return look_beyond_us(name);
  return kAskCLibrary;
}

Answer gcr_preload_choose_dlvsym(void* handle, const char* name, const char* version) {
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

// The entries. Names that begin with "cu", "hi", "nv", "__h" or "_Z" are looked at. Arguments: rdi
// handle, rsi name, rdx version; the return address is the caller's. They are kept over the call of
// the choosing function, whose third argument is, for dlsym, that return address.
asm(R"(
    .text
    .macro gcr_entry name choose real save_third
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
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
4:  push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx
    .cfi_adjust_cfa_offset 8
    .if \save_third == 0
    mov 24(%rsp), %rdx
    .endif
    call \choose
    mov %edx, %ecx
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    test %cl, %cl
    je 1f
    ret
1:  jmp *\real(%rip)
    .cfi_endproc
    .size \name, . - \name
    .endm

    gcr_entry dlsym gcr_preload_choose_dlsym gcr_preload_real_dlsym 0
    gcr_entry dlvsym gcr_preload_choose_dlvsym gcr_preload_real_dlvsym 1

    .macro gcr_first name real
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx
    .cfi_adjust_cfa_offset 8
    call gcr_preload_find_real_functions
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    jmp *\real(%rip)
    .cfi_endproc
    .size \name, . - \name
    .endm

    .globl gcr_preload_first_dlsym
    .globl gcr_preload_first_dlvsym
    .hidden gcr_preload_first_dlsym
    .hidden gcr_preload_first_dlvsym
    gcr_first gcr_preload_first_dlsym gcr_preload_real_dlsym
    gcr_first gcr_preload_first_dlvsym gcr_preload_real_dlvsym
)");
