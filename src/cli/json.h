// JSON for scripts: Protobuf's mapping, with the names of the fields as the messages have them.
#pragma once

#include <google/protobuf/struct.pb.h>

#include <initializer_list>
#include <string>

namespace gcr::cli {

using google::protobuf::Message;
using google::protobuf::Struct;

/// On one line, without its end. Every field is present; 64-bit numbers are strings.
std::string to_json(const Message& message);

/// The same as an object; the bytes of a `migration_id` become a UUID.
Struct to_struct(const Message& message);

/// Control characters become "?"; a number that is not finite becomes 0.
void set(Struct& object, const char* key, const std::string& text);
void set(Struct& object, const char* key, double number);
void set_bool(Struct& object, const char* key, bool value);

/// Adds the message's fields of these names, whose numbers are numbers: exact up to 2^53, 8 PiB.
void set_fields(Struct& object, const Message& message, std::initializer_list<const char*> names);

Struct& set_object(Struct& object, const char* key);

/// Adds an object to the list, which is made if `object` has none.
Struct& add_object(Struct& object, const char* key);
void make_list(Struct& object, const char* key);

}  // namespace gcr::cli
