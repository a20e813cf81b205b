// A library loaded after the preloaded one, for lookups that depend on the caller's position.
#pragma once

extern "C" {
/// dlsym(RTLD_NEXT, name), called from the library.
void* next_library_search(const char* name);
/// Defined by the library and by the test program.
int gcr_twice();
int cu_twice();
/// Begins like the driver's functions.
int cuFileOfTheNextLibrary();
}
