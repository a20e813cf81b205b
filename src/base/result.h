// Result<T> and Status: how this project reports failure.
//
// Every foreign error (errno, CUresult, verbs, Asio, OpenSSL) is converted to an Error in one
// function of the module that gets it. An Error says what was being done, with the numbers, and
// carries its cause in the same sentence: "cannot map buffer 12 (64 MiB): out of memory: ...".
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace gcr {

/// The kind of failure; decides exit codes and what a caller may do next. Zero is never
/// used.
enum class Code {
  kInvalid = 0,
  kInvalidArgument,    ///< the request itself is wrong
  kRefused,            ///< preflight found a blocker; nothing was touched
  kNotFound,           ///< no such process, file, buffer
  kPermissionDenied,   ///< not authorised, by certificate or by the kernel
  kUnavailable,        ///< a peer or a device cannot be reached
  kResourceExhausted,  ///< memory, VRAM, hugepages, descriptors
  kUnsupported,        ///< the kernel, the driver or CRIU cannot do it
  kTimeout,
  kCancelled,
  kProtocol,  ///< a peer sent something that the protocol forbids
  kDataLoss,  ///< bytes differ from what was sent
  kIo,        ///< a system call failed
  kInternal,  ///< a bug: an invariant is broken
};

/// The code's name as it appears in JSON and logs, e.g. "resource-exhausted".
std::string_view to_string(Code code);

/// One failure: a code and one sentence without a final full stop. Copyable.
class [[nodiscard]] Error {
 public:
  Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  /// Returns the same failure with the caller's context: "<doing>: <message>". Keeps the code.
  Error while_doing(std::string_view doing) const;

  /// Returns the error for an errno value: "<doing>: <strerror>", with a matching code.
  static Error from_errno(int errno_value, std::string_view doing);

 private:
  Code code_;
  std::string message_;
};

/// Either a T or an Error.
template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
  Result(Error error) : tl::expected<T, Error>(tl::unexpect, std::move(error)) {}  // NOLINT
};

using Status = Result<void>;

}  // namespace gcr

#define GCR_CONCAT_INNER(a, b) a##b
#define GCR_CONCAT(a, b) GCR_CONCAT_INNER(a, b)

/// Leaves the function with the Error if `expression` (a Status or Result) failed.
#define GCR_TRY(expression)                               \
  do {                                                    \
    if (auto&& gcr_status = (expression); !gcr_status) {  \
      return ::gcr::Error(std::move(gcr_status).error()); \
    }                                                     \
  } while (false)

/// `GCR_ASSIGN(auto fd, open_it());` declares fd from the value, or leaves with the Error.
#define GCR_ASSIGN(declaration, expression) \
  GCR_ASSIGN_IMPL(GCR_CONCAT(gcr_result_, __LINE__), declaration, expression)
#define GCR_ASSIGN_IMPL(result, declaration, expression)       \
  auto result = (expression);                                  \
  if (!result) return ::gcr::Error(std::move(result).error()); \
  declaration = std::move(*result)

/// GCR_TRY and GCR_ASSIGN for coroutines; `expression` may contain co_await.
#define GCR_CO_TRY(expression)                               \
  do {                                                       \
    auto&& gcr_status = (expression);                        \
    if (!gcr_status) {                                       \
      co_return ::gcr::Error(std::move(gcr_status).error()); \
    }                                                        \
  } while (false)
#define GCR_CO_ASSIGN(declaration, expression) \
  GCR_CO_ASSIGN_IMPL(GCR_CONCAT(gcr_result_, __LINE__), declaration, expression)
#define GCR_CO_ASSIGN_IMPL(result, declaration, expression)       \
  auto result = (expression);                                     \
  if (!result) co_return ::gcr::Error(std::move(result).error()); \
  declaration = std::move(*result)
