// Sanitises the texts of a record: they come from peers, from command lines and from errors, and
// must never prevent a record from being written or read.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "src/base/result.h"

namespace gcr::journal {

/// Cuts every string of `message`, at any depth, at `max_bytes` between characters, and puts '?' in
/// place of bytes that are not UTF-8. Fields of type bytes and numbers stay. On failure (no memory)
/// the message may be half done.
Status make_fit(google::protobuf::Message& message, std::size_t max_bytes);

/// A command line as journals keep it: its beginning, in printable ASCII.
std::string short_command(std::string_view command);

}  // namespace gcr::journal
