// This machine's name, for people.
#pragma once

#include <string>

namespace gcr {

/// "localhost" where the kernel does not say. Thread-safe.
std::string host_name();

}  // namespace gcr
