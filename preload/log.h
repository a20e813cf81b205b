// The library's log: empty unless GCR_PRELOAD_LOG is set in the environment.
#pragma once

namespace gcr::preload {

/// Writes one printf-formatted line to standard error, if GCR_PRELOAD_LOG is set and not "0". Any
/// thread. Calls neither malloc nor stdio; preserves errno.
void log_line(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace gcr::preload
