// Maps and copies on request: a driver's use of host memory in a checkpoint.
#include <string.h>
#include <sys/mman.h>

#include <cstddef>

extern "C" {

void* copying_driver_map(std::size_t bytes, int protection, int flags) {
  return ::mmap(nullptr, bytes, protection, flags, -1, 0);
}
void* copying_driver_map64(std::size_t bytes, int protection, int flags) {
  return ::mmap64(nullptr, bytes, protection, flags, -1, 0);
}
void* copying_driver_copy(void* to, const void* from, std::size_t bytes) {
  return ::memcpy(to, from, bytes);
}
}
