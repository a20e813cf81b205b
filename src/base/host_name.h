// This machine's name, for people.
#pragma once

#include <string>

namespace gcr {

/// Returns this machine's name, or "localhost" if the kernel does not say. Thread-safe.
std::string host_name();

}  // namespace gcr
