#include "tests/preload/table/next_library.h"

#include <dlfcn.h>

void* next_library_search(const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  asm volatile("" ::: "memory");  // no tail call: the caller must be this library
  return found;
}
int gcr_twice() { return 2; }
int cu_twice() { return 2; }
int cuFileOfTheNextLibrary() { return 3; }
