// A library that calls a driver, for a program that opens it with RTLD_DEEPBIND. GCR_DEEP_HIP: the
// driver is HIP's. GCR_DEEP_ALONE: it is linked to none. GCR_DEEP_UNKNOWN: it also calls a function
// that no table knows. GCR_DEEP_SEALED: once it is loaded, its bindings cannot be changed.
#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" {
#ifdef GCR_DEEP_HIP
int hipMemset(void* pointer, int value, size_t bytes);
int deep_call() { return hipMemset(nullptr, 0, 1); }
int (*const deep_functions[])(void*, int, size_t) = {hipMemset};
#elif !defined(GCR_DEEP_ALONE)
int cuMemsetD8_v2(unsigned long long pointer, unsigned char value, size_t bytes);
int cuNeverHeardOf(int a);
int deep_call() { return cuMemsetD8_v2(0, 0, 1); }
int (*const deep_functions[])(unsigned long long, unsigned char, size_t) = {cuMemsetD8_v2};
#endif
#ifndef GCR_DEEP_ALONE
int deep_call_by_pointer() { return deep_functions[0]({}, 0, 1); }
#endif

#ifdef GCR_DEEP_UNKNOWN
int deep_call_unknown() { return cuNeverHeardOf(1); }
#endif

void* deep_search(const char* name) {
  void* const found = dlsym(RTLD_DEFAULT, name);
  asm volatile("" ::: "memory");  // no tail call: the caller must be this library
  return found;
}

/// Like a runtime that is linked to no driver.
void* deep_find(const char* driver, const char* name) {
  void* const handle = dlopen(driver, RTLD_NOW);
  return handle == nullptr ? nullptr : dlsym(handle, name);
}
}

#ifdef GCR_DEEP_SEALED
namespace {

[[gnu::constructor]] void seal() {
  constexpr long kMseal = 462;
  constexpr unsigned long kPage = 4096;
  const auto at = reinterpret_cast<unsigned long>(&deep_functions) / kPage * kPage;
  syscall(kMseal, at, kPage, 0);
}

}  // namespace
#endif
