#include "src/base/result.h"

#include <cerrno>
#include <system_error>

namespace gcr {
namespace {

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

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kInvalid:
      return "invalid";
    case Code::kInvalidArgument:
      return "invalid-argument";
    case Code::kRefused:
      return "refused";
    case Code::kNotFound:
      return "not-found";
    case Code::kPermissionDenied:
      return "permission-denied";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kResourceExhausted:
      return "resource-exhausted";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kTimeout:
      return "timeout";
    case Code::kCancelled:
      return "cancelled";
    case Code::kProtocol:
      return "protocol";
    case Code::kDataLoss:
      return "data-loss";
    case Code::kIo:
      return "io";
    case Code::kInternal:
      return "internal";
  }
  return "invalid";
}

Error Error::while_doing(std::string_view doing) const {
  return Error(code_, std::string(doing) + ": " + message_);
}

Error Error::from_errno(int errno_value, std::string_view doing) {
  return Error(code_of_errno(errno_value),
               std::string(doing) + ": " + std::generic_category().message(errno_value));
}

}  // namespace gcr
