#include "migrate-agent/commit/journal/text.h"

#include <iconv.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

namespace gcr::journal {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr std::size_t kMaxCommandBytes = 200;

using Converter = std::unique_ptr<void, decltype(&iconv_close)>;

std::string fitting(Converter& converter, std::string text, std::size_t max_bytes) {
  std::string result(max_bytes, '\0');
  char* in = text.data();
  std::size_t in_left = text.size();
  char* out = result.data();
  std::size_t out_left = result.size();
  while (iconv(converter.get(), &in, &in_left, &out, &out_left) == static_cast<std::size_t>(-1) &&
         errno != E2BIG && out_left != 0) {
    *out++ = '?';
    --out_left;
    ++in;
    --in_left;
  }
  iconv(converter.get(), nullptr, nullptr, nullptr, nullptr);
  result.resize(max_bytes - out_left);
  return result;
}

void make_fit(Converter& converter, Message& message, std::size_t max_bytes) {
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool repeated = field->is_repeated();
    for (int i = 0; i < (repeated ? reflection.FieldSize(message, field) : 1); ++i) {
      if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        make_fit(converter,
                 repeated ? *reflection.MutableRepeatedMessage(&message, field, i)
                          : *reflection.MutableMessage(&message, field),
                 max_bytes);
      } else if (field->type() == FieldDescriptor::TYPE_STRING && repeated) {
        std::string text = reflection.GetRepeatedString(message, field, i);
        reflection.SetRepeatedString(&message, field, i,
                                     fitting(converter, std::move(text), max_bytes));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        reflection.SetString(&message, field,
                             fitting(converter, reflection.GetString(message, field), max_bytes));
      }
    }
  }
}

}  // namespace

Status make_fit(Message& message, std::size_t max_bytes) {
  const iconv_t opened = iconv_open("UTF-8", "UTF-8");
  if (opened == reinterpret_cast<iconv_t>(-1)) {
    return Error::from_errno(errno, "cannot convert the texts of a record");
  }
  Converter converter(opened, iconv_close);
  make_fit(converter, message, max_bytes);
  return {};
}

std::string short_command(std::string_view command) {
  std::string text(command.substr(0, kMaxCommandBytes));
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace gcr::journal
