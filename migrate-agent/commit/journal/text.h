// Sanitises the text in records: it comes from peers, command lines and errors, and must never
// prevent a record from being written or read.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "src/base/result.h"

namespace gcr::journal {

/// Cuts every string of `message`, at any depth, at `max_bytes` between characters, and replaces
/// bytes that are not UTF-8 by '?'. Numbers and fields of type bytes are unchanged. On failure (no
/// memory) only a part may have been changed.
Status make_fit(google::protobuf::Message& message, std::size_t max_bytes);

/// Returns the form in which journals store a command line: its beginning, in printable ASCII.
std::string short_command(std::string_view command);

}  // namespace gcr::journal
