#include "src/cli/json.h"

#include <google/protobuf/util/json_util.h>

#include <cmath>

#include "src/base/uuid.h"
#include "src/control/wire.h"

namespace gcr::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Value;

Value& value_of(Struct& object, const char* key) { return (*object.mutable_fields())[key]; }

void set_field(Struct& object, const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  const char* name = field.name().c_str();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return set(object, name, reflection.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return set_bool(object, name, reflection.GetBool(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set(object, name, reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_INT32:
      return set(object, name, reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return set(object, name, reflection.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return set(object, name, static_cast<double>(reflection.GetUInt64(message, &field)));
    default:  // other types are not used
      return value_of(object, name).set_null_value({});
  }
}

}  // namespace

std::string to_json(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  return status.ok() ? text : "{}";
}

Struct to_struct(const Message& message) {
  Struct object;
  const auto status = google::protobuf::util::JsonStringToMessage(to_json(message), &object);
  if (!status.ok()) object.Clear();
  if (const auto* id = message.GetDescriptor()->FindFieldByName("migration_id")) {
    const Uuid uuid = to_uuid(message.GetReflection()->GetString(message, id));
    set(object, "migration_id", uuid.to_string());
  }
  return object;
}

void set(Struct& object, const char* key, const std::string& text) {
  value_of(object, key).set_string_value(control::printable(text));
}

void set(Struct& object, const char* key, double number) {
  value_of(object, key).set_number_value(std::isfinite(number) ? number : 0);
}

void set_bool(Struct& object, const char* key, bool value) {
  value_of(object, key).set_bool_value(value);
}

void set_fields(Struct& object, const Message& message, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    set_field(object, message, *message.GetDescriptor()->FindFieldByName(name));
  }
}

Struct& set_object(Struct& object, const char* key) {
  return *value_of(object, key).mutable_struct_value();
}

Struct& add_object(Struct& object, const char* key) {
  return *value_of(object, key).mutable_list_value()->add_values()->mutable_struct_value();
}

void make_list(Struct& object, const char* key) { value_of(object, key).mutable_list_value(); }

}  // namespace gcr::cli
