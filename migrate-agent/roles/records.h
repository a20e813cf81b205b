// What both roles write into their journals.
#pragma once

#include <string>
#include <string_view>

namespace gcr::agent {

/// A command line as journals keep it: its beginning, in printable ASCII.
std::string short_command(std::string_view command);

}  // namespace gcr::agent
