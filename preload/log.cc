#include "preload/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

namespace gcr::preload {
namespace {

bool wanted() {
  static const bool value = [] {
    const char* text = ::getenv("GCR_PRELOAD_LOG");
    return text != nullptr && *text != '\0' && ::strcmp(text, "0") != 0;
  }();
  return value;
}

}  // namespace

void log_line(const char* format, ...) {
  if (!wanted()) return;
  const int saved_errno = errno;
  char line[512];
  int used = ::snprintf(line, sizeof(line), "gcr-preload[%d]: ", static_cast<int>(::getpid()));
  va_list arguments;
  va_start(arguments, format);
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it does not follow va_start here
  const int wrote = ::vsnprintf(line + used, sizeof(line) - used - 1, format, arguments);
  va_end(arguments);
  used = std::min<int>(used + std::max(wrote, 0), sizeof(line) - 2);
  line[used++] = '\n';
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line, used);
  errno = saved_errno;
}

}  // namespace gcr::preload
