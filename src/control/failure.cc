#include <algorithm>

#include "src/control/wire.h"

namespace gcr::control {
namespace {

constexpr std::size_t kMaxPrintableBytes = 4096;

Code code_of_name(std::string_view name) {
  for (int value = static_cast<int>(Code::kInvalidArgument);
       value <= static_cast<int>(Code::kInternal); ++value) {
    if (to_string(static_cast<Code>(value)) == name) return static_cast<Code>(value);
  }
  return Code::kInternal;
}

}  // namespace

proto::Failure to_failure(const Error& error) {
  proto::Failure failure;
  failure.set_code(std::string(to_string(error.code())));
  failure.set_message(printable(error.message()));
  return failure;
}

Error from_failure(const proto::Failure& failure) {
  return Error(code_of_name(failure.code()), printable(failure.message()));
}

std::string printable(std::string_view text) {
  std::string result(text.substr(0, kMaxPrintableBytes));
  std::ranges::replace_if(
      result, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return result;
}

}  // namespace gcr::control
