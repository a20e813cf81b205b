// The journal's records that both roles and their recovery write.
#pragma once

#include <string>

#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::agent {

/// A command line as journals keep it: its beginning, in printable ASCII.
std::string short_command(std::string_view command);

journal::Record aborted(const Error& cause);

/// `pid`: of the process that runs here, 0 if none.
journal::Record finished(const std::string& text, pid_t pid = 0);

}  // namespace gcr::agent
