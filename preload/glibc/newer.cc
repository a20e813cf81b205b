// Functions that this library or the compiler's static libraries call and glibc 2.28 does not
// export. The linker finds them here; no other object sees them.
//
// None allocates. All but pthread_atfork and _dl_find_object may be called in a signal handler.
#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/elf_object.h"

#ifdef DLFO_STRUCT_HAS_EH_DBASE
namespace {

void* at(const dl_phdr_info& info, ElfW(Addr) offset) {
  return reinterpret_cast<void*>(info.dlpi_addr + offset);
}

dl_find_object describe(const dl_phdr_info& info) {
  dl_find_object object{};
  for (const ElfW(Phdr) & segment : gcr::preload::segments_of(info)) {
    if (segment.p_type == PT_GNU_EH_FRAME) object.dlfo_eh_frame = at(info, segment.p_vaddr);
    if (segment.p_type != PT_LOAD) continue;  // these are in the order of addresses
    if (object.dlfo_map_end == nullptr) object.dlfo_map_start = at(info, segment.p_vaddr);
    object.dlfo_map_end = at(info, segment.p_vaddr + segment.p_memsz);
  }
  return object;
}

}  // namespace
#endif

// NOLINTBEGIN(bugprone-reserved-identifier): glibc's names
extern "C" {

int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void* object);
// Headers since glibc 2.38 give these other names.
long old_strtol(const char* text, char** end, int base) noexcept asm("strtol");
unsigned long old_strtoul(const char* text, char** end, int base) noexcept asm("strtoul");
extern void* __dso_handle __attribute__((visibility("hidden")));

/// Since glibc 2.30.
pid_t gettid() noexcept { return static_cast<pid_t>(::syscall(SYS_gettid)); }

/// Since glibc 2.30.
ssize_t getdents64(int fd, void* buffer, std::size_t length) noexcept {
  return ::syscall(SYS_getdents64, fd, buffer, length);
}

/// Since glibc 2.32. While it is not 0, libstdc++ leaves out locked instructions, because the
/// process has one thread. Locked ones are correct at any time.
char __libc_single_threaded = 0;

/// Since glibc 2.33; in its static part before.
int fstat(int fd, struct stat* status) noexcept {
  return static_cast<int>(::syscall(SYS_fstat, fd, status));
}

/// In the static part of every glibc, with which the library is not linked.
int pthread_atfork(void (*prepare)(), void (*parent)(), void (*child)()) noexcept {
  return __register_atfork(prepare, parent, child, __dso_handle);
}

/// Since glibc 2.38, by whose headers strtol is this one. It also reads binary numbers (0b1), which
/// nothing here has.
long __isoc23_strtol(const char* text, char** end, int base) noexcept {
  return old_strtol(text, end, base);
}
/// The same, of strtoul.
unsigned long __isoc23_strtoul(const char* text, char** end, int base) noexcept {
  return old_strtoul(text, end, base);
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE
/// Since glibc 2.35. libgcc's unwinder asks it for the unwinding table of the object that contains
/// `address`; if there is none, the stack ends there. dlfo_link_map, which libgcc does not read, is
/// null.
int _dl_find_object(void* address, dl_find_object* result) noexcept {
  const bool found = gcr::preload::visit_objects([&](const auto&, const dl_phdr_info& info) {
    if (!gcr::preload::contains(info, address)) return false;
    *result = describe(info);
    return true;
  });
  return found && result->dlfo_eh_frame != nullptr ? 0 : -1;
}
#endif

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
