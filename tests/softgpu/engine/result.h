// The engine's results. The numbers are those of CUresult; hipError_t has most of them too. Each
// face translates into its own type: CUDA's by is_face_result, HIP's number by number.
#pragma once

namespace gcr::softgpu {

/// True for a face's enumeration with these very numbers: it converts to a Result and back.
template <class T>
inline constexpr bool is_face_result = false;

class Result {
 public:
  enum Code {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kNotInitialized = 3,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidImage = 200,
    kInvalidContext = 201,
    kMapFailed = 205,
    kNoBinaryForGpu = 209,
    kOperatingSystem = 304,
    kInvalidHandle = 400,
    kIllegalState = 401,
    kNotFound = 500,
    kNotReady = 600,
    kIllegalAddress = 700,
    kPeerAccessAlreadyEnabled = 704,
    kPeerAccessNotEnabled = 705,
    kContextIsDestroyed = 709,
    kHostMemoryAlreadyRegistered = 712,
    kHostMemoryNotRegistered = 713,
    kNotPermitted = 800,
    kNotSupported = 801,
    kSystemNotReady = 802,
    kStreamCaptureUnsupported = 900,
    kStreamCaptureInvalidated = 901,
    kStreamCaptureUnmatched = 903,
    kStreamCaptureIsolation = 905,
    kStreamCaptureImplicit = 906,
    kCapturedEvent = 907,
    kStreamCaptureWrongThread = 908,
    kUnknown = 999,
  };

  constexpr Result() = default;
  // NOLINTBEGIN(google-explicit-constructor): a Result is its code
  constexpr Result(Code code) : code_(code) {}
  template <class T>
  requires is_face_result<T>
  constexpr Result(T result) : code_(static_cast<Code>(result)) {}
  template <class T>
  requires is_face_result<T>
  constexpr operator T() const { return static_cast<T>(code_); }
  // NOLINTEND(google-explicit-constructor)

  constexpr Code code() const { return code_; }
  /// It is an error.
  constexpr explicit operator bool() const { return code_ != kSuccess; }
  friend constexpr bool operator==(Result, Result) = default;
  template <class T>
  requires is_face_result<T>
  friend constexpr bool operator==(Result one, T other) { return one == Result(other); }

 private:
  Code code_ = kSuccess;
};

}  // namespace gcr::softgpu
