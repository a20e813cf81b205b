#include "src/base/result.h"

#include <array>
#include <cerrno>
#include <system_error>

namespace gcr {
namespace {

/// The names of the values of Code, in their order.
constexpr std::array<std::string_view, 14> kCodeNames{
    "invalid",     "invalid-argument",   "refused",     "not-found", "permission-denied",
    "unavailable", "resource-exhausted", "unsupported", "timeout",   "cancelled",
    "protocol",    "data-loss",          "io",          "internal"};
static_assert(kCodeNames.size() == static_cast<std::size_t>(Code::kInternal) + 1);

Code code_of_errno(int value) {
  switch (value) {
    case ENOENT:
    case ESRCH:
      return Code::kNotFound;
    case EPERM:
    case EACCES:
      return Code::kPermissionDenied;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case EDQUOT:
      return Code::kResourceExhausted;
    case ETIMEDOUT:
      return Code::kTimeout;
    case ECANCELED:
      return Code::kCancelled;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EPIPE:
      return Code::kUnavailable;
    case ENOSYS:
    case EOPNOTSUPP:
      return Code::kUnsupported;
    default:
      return Code::kIo;
  }
}

}  // namespace

std::string_view to_string(Code code) { return kCodeNames.at(static_cast<std::size_t>(code)); }

Error Error::while_doing(std::string_view doing) const {
  return Error(code_, std::string(doing) + ": " + message_);
}

Error Error::from_errno(int errno_value, std::string_view doing) {
  return Error(code_of_errno(errno_value),
               std::string(doing) + ": " + std::generic_category().message(errno_value));
}

}  // namespace gcr
