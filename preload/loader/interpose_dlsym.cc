// dlsym and dlvsym, exported: a caller that asks for a driver function with a shim gets the shim,
// if without this library it would get the driver's own function. A function of the driver that the
// tables do not know is not found.
//
// dlopen and dlmopen, exported: before an object is opened with RTLD_DEEPBIND, whose own
// dependencies come before this library, a driver that is loaded is made to name the shims
// (preload/bindings.h). Where one is loaded together with the object, it is found at the next
// search, before which nobody can have called anything but the object's constructors.
//
// Everything else goes on to the C library's function by a jump: with RTLD_NEXT and RTLD_DEFAULT it
// looks at its return address to know whose search order to follow, so it must see the caller's.
// A name that begins like none of CUDA's, HIP's or NVML's functions costs one or two compared bytes
// and that jump.
//
// The C library's functions are found in its symbol table, since any reference of ours to these,
// versioned or not, would be bound to our own. That first search calls no other function:
// dlsym may be called before anything is initialised, including a sanitizer's replacements for the
// C library's functions.
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <type_traits>

#include "preload/bindings.h"
#include "preload/cuda/driver_table.h"
#include "preload/cuda/nvml.h"
#include "preload/cuda/real_driver.h"
#include "preload/elf_object.h"
#include "preload/hip/hip_table.h"
#include "preload/hip/real_hip.h"
#include "preload/withheld.h"

#ifndef __x86_64__
#error "the entries are written for x86-64"
#endif

namespace {

using gcr::preload::ElfObject;
using gcr::preload::FunctionRow;
using gcr::preload::may_be_of_driver;

using Dlsym = void* (*)(void* handle, const char* name);
using Dlvsym = void* (*)(void* handle, const char* name, const char* version);
using Dlopen = void* (*)(const char* file, int mode);
using Dlmopen = void* (*)(Lmid_t space, const char* file, int mode);

/// What the entry does next: returns `address` if `decided`, else jumps to the C library. Returned
/// in rax and dl.
struct Answer {
  void* address;
  bool decided;
};

constexpr Answer kAskCLibrary{nullptr, false};

static_assert(RTLD_DEEPBIND == 8);  // as the entries have it

/// A function with a shim, and the driver's own, null if no loaded driver has it.
struct Interposed {
  const FunctionRow* row = nullptr;
  void* real = nullptr;
};

/// Those that are loaded name the shims from now on, and are found as quickly as can be.
void find_drivers() {
  gcr::preload::real_driver();
  gcr::preload::real_hip();
}

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

/// Whether what was found for `name` (null: its search begins elsewhere) is a driver's function
/// that its table does not know.
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
void* gcr_preload_first_dlopen(const char* file, int mode);
void* gcr_preload_first_dlmopen(Lmid_t space, const char* file, int mode);

// Where the entries jump to: the C library's functions from the first call on.
constinit Dlsym gcr_preload_real_dlsym = &gcr_preload_first_dlsym;
constinit Dlvsym gcr_preload_real_dlvsym = &gcr_preload_first_dlvsym;
constinit Dlopen gcr_preload_real_dlopen = &gcr_preload_first_dlopen;
constinit Dlmopen gcr_preload_real_dlmopen = &gcr_preload_first_dlmopen;

/// Not 0: an object was opened with RTLD_DEEPBIND since dlsym or dlvsym was called.
constinit unsigned char gcr_preload_opened_deep = 0;

void gcr_preload_find_real_functions() {
  const auto find = [](auto* function, const char* name) {
    __atomic_store_n(function,
                     reinterpret_cast<std::remove_reference_t<decltype(*function)>>(
                         find_beyond_this_library(name)),
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

/// While the process has one thread and loads nothing: the list of objects is walked without a
/// lock.
[[gnu::constructor]] void find_real_functions_early() {
  gcr_preload_find_real_functions();
  find_drivers();
}

/// What an object that was opened with RTLD_DEEPBIND has of the C library instead of this one.
const gcr::preload::bindings::Replaced kReplaced[] = {
    {"dlsym", reinterpret_cast<void*>(&dlsym)},     {"dlvsym", reinterpret_cast<void*>(&dlvsym)},
    {"dlopen", reinterpret_cast<void*>(&dlopen)},   {"dlmopen", reinterpret_cast<void*>(&dlmopen)},
    {"syscall", reinterpret_cast<void*>(&syscall)},
};

void look_after_deep_open() {
  if (__atomic_exchange_n(&gcr_preload_opened_deep, 0, __ATOMIC_ACQ_REL) == 0) return;
  find_drivers();
  gcr::preload::bindings::look({});
}

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

void gcr_preload_before_deep_open() {
  const int saved_errno = errno;
  find_drivers();
  gcr::preload::bindings::expect_deep_binding(kReplaced);
  __atomic_store_n(&gcr_preload_opened_deep, 1, __ATOMIC_RELEASE);
  errno = saved_errno;
}

Answer gcr_preload_choose_dlsym(void* handle, const char* name, const void* caller) {
  look_after_deep_open();
  const auto [row, real] = find_interposed(name);
  if (row == nullptr && !may_be_of_driver(name)) return kAskCLibrary;
  void* const found =
      handle == RTLD_NEXT ? find_next(name, caller) : gcr_preload_real_dlsym(handle, name);
  // The caller may find more than this library in the default order.
  if (found == nullptr && (row != nullptr || handle != RTLD_DEFAULT)) return kAskCLibrary;
  if (row == nullptr) {
    if (!is_unknown(name, found)) return kAskCLibrary;
    return withhold(name,
                    [&](const char* reason) { return gcr_preload_real_dlsym(handle, reason); });
  }
  if (found == real) return {row->shim, true};
  // The C library would not search the driver for it.
  if (found == row->shim && real != nullptr && handle == RTLD_NEXT) return {row->shim, true};
  if (found == row->shim && real == nullptr) return look_beyond_us(name);
  return kAskCLibrary;
}

Answer gcr_preload_choose_dlvsym(void* handle, const char* name, const char* version) {
  look_after_deep_open();
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

// The entries. Names that begin with "cu", "hi", "nv", "__h" or "_Z" are looked at, and all after
// an object was opened with RTLD_DEEPBIND. Arguments: rdi handle, rsi name, rdx version; the return
// address is the caller's. They are kept over the call of the choosing function, whose third
// argument is, for dlsym, that return address.
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
