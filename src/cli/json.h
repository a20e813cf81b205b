// JSON for scripts: Protobuf's mapping, with the field names of the messages.
#pragma once

#include <google/protobuf/struct.pb.h>

#include <initializer_list>
#include <string>

namespace gcr::cli {

using google::protobuf::Message;
using google::protobuf::Struct;

/// Returns the message as one line without a line end. Every field is present; 64-bit numbers are
/// strings.
std::string to_json(const Message& message);

/// Returns the message as an object; the bytes of a `migration_id` become a UUID.
Struct to_struct(const Message& message);

/// Set a value of `object`. Control characters become "?"; a number that is not finite becomes 0.
void set(Struct& object, const char* key, const std::string& text);
void set(Struct& object, const char* key, double number);
void set_bool(Struct& object, const char* key, bool value);

/// Adds the message's fields of these names; numbers become JSON numbers, exact up to 2^53 (8 PiB).
void set_fields(Struct& object, const Message& message, std::initializer_list<const char*> names);

Struct& set_object(Struct& object, const char* key);

/// Adds an object to the list `key`, which is created if `object` has none.
Struct& add_object(Struct& object, const char* key);
void make_list(Struct& object, const char* key);

}  // namespace gcr::cli
