#include "tests/softgpu/hip/face.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace gcr::softgpu::hip {

namespace {

constexpr int kDefaultRelease = 602;  // of the library's SONAME

thread_local hipError_t last_error = hipSuccess;

#define SOFTHIP_SAME(engine, hip) static_assert(int{Result::engine} == int{hip})
SOFTHIP_SAME(kSuccess, hipSuccess);
SOFTHIP_SAME(kInvalidValue, hipErrorInvalidValue);
SOFTHIP_SAME(kOutOfMemory, hipErrorOutOfMemory);
SOFTHIP_SAME(kNotInitialized, hipErrorNotInitialized);
SOFTHIP_SAME(kNoDevice, hipErrorNoDevice);
SOFTHIP_SAME(kInvalidDevice, hipErrorInvalidDevice);
SOFTHIP_SAME(kInvalidImage, hipErrorInvalidImage);
SOFTHIP_SAME(kInvalidContext, hipErrorInvalidContext);
SOFTHIP_SAME(kMapFailed, hipErrorMapFailed);
SOFTHIP_SAME(kNoBinaryForGpu, hipErrorNoBinaryForGpu);
SOFTHIP_SAME(kOperatingSystem, hipErrorOperatingSystem);
SOFTHIP_SAME(kInvalidHandle, hipErrorInvalidHandle);
SOFTHIP_SAME(kIllegalState, hipErrorIllegalState);
SOFTHIP_SAME(kNotFound, hipErrorNotFound);
SOFTHIP_SAME(kNotReady, hipErrorNotReady);
SOFTHIP_SAME(kIllegalAddress, hipErrorIllegalAddress);
SOFTHIP_SAME(kPeerAccessAlreadyEnabled, hipErrorPeerAccessAlreadyEnabled);
SOFTHIP_SAME(kPeerAccessNotEnabled, hipErrorPeerAccessNotEnabled);
SOFTHIP_SAME(kContextIsDestroyed, hipErrorContextIsDestroyed);
SOFTHIP_SAME(kHostMemoryAlreadyRegistered, hipErrorHostMemoryAlreadyRegistered);
SOFTHIP_SAME(kHostMemoryNotRegistered, hipErrorHostMemoryNotRegistered);
SOFTHIP_SAME(kNotSupported, hipErrorNotSupported);
SOFTHIP_SAME(kStreamCaptureUnsupported, hipErrorStreamCaptureUnsupported);
SOFTHIP_SAME(kStreamCaptureInvalidated, hipErrorStreamCaptureInvalidated);
SOFTHIP_SAME(kStreamCaptureUnmatched, hipErrorStreamCaptureUnmatched);
SOFTHIP_SAME(kStreamCaptureIsolation, hipErrorStreamCaptureIsolation);
SOFTHIP_SAME(kStreamCaptureImplicit, hipErrorStreamCaptureImplicit);
SOFTHIP_SAME(kCapturedEvent, hipErrorCapturedEvent);
SOFTHIP_SAME(kStreamCaptureWrongThread, hipErrorStreamCaptureWrongThread);
SOFTHIP_SAME(kUnknown, hipErrorUnknown);
#undef SOFTHIP_SAME

int read_release() {
  const char* text = std::getenv("SOFTHIP_RELEASE");
  int major = 0;
  int minor = 0;
  if (text == nullptr || std::sscanf(text, "%d.%d", &major, &minor) != 2) return kDefaultRelease;
  return major * 100 + minor;
}

struct ErrorText {
  hipError_t code;
  const char* name;
  const char* text;
};

#define SOFTHIP_ERROR(code, text) \
  { code, #code, text }
constexpr ErrorText kErrors[] = {
    SOFTHIP_ERROR(hipSuccess, "no error"),
    SOFTHIP_ERROR(hipErrorInvalidValue, "invalid argument"),
    SOFTHIP_ERROR(hipErrorOutOfMemory, "out of memory"),
    SOFTHIP_ERROR(hipErrorNotInitialized, "initialization error"),
    SOFTHIP_ERROR(hipErrorInvalidConfiguration, "invalid configuration argument"),
    SOFTHIP_ERROR(hipErrorInvalidSymbol, "invalid device symbol"),
    SOFTHIP_ERROR(hipErrorInvalidDevicePointer, "invalid device pointer"),
    SOFTHIP_ERROR(hipErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    SOFTHIP_ERROR(hipErrorInvalidDeviceFunction, "invalid device function"),
    SOFTHIP_ERROR(hipErrorNoDevice, "no ROCm-capable device is detected"),
    SOFTHIP_ERROR(hipErrorInvalidDevice, "invalid device ordinal"),
    SOFTHIP_ERROR(hipErrorInvalidImage, "device kernel image is invalid"),
    SOFTHIP_ERROR(hipErrorInvalidContext, "invalid device context"),
    SOFTHIP_ERROR(hipErrorMapFailed, "mapping of buffer object failed"),
    SOFTHIP_ERROR(hipErrorNoBinaryForGpu,
                  "no kernel image is available for execution on the device"),
    SOFTHIP_ERROR(hipErrorContextAlreadyInUse, "exclusive-thread device already in use"),
    SOFTHIP_ERROR(hipErrorFileNotFound, "file not found"),
    SOFTHIP_ERROR(hipErrorOperatingSystem, "OS call failed or operation not supported"),
    SOFTHIP_ERROR(hipErrorInvalidHandle, "invalid resource handle"),
    SOFTHIP_ERROR(hipErrorIllegalState, "the operation cannot be performed in the present state"),
    SOFTHIP_ERROR(hipErrorNotFound, "named symbol not found"),
    SOFTHIP_ERROR(hipErrorNotReady, "device not ready"),
    SOFTHIP_ERROR(hipErrorIllegalAddress, "an illegal memory access was encountered"),
    SOFTHIP_ERROR(hipErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    SOFTHIP_ERROR(hipErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    SOFTHIP_ERROR(hipErrorContextIsDestroyed, "context is destroyed"),
    SOFTHIP_ERROR(hipErrorHostMemoryAlreadyRegistered,
                  "part or all of the requested memory range is already mapped"),
    SOFTHIP_ERROR(hipErrorHostMemoryNotRegistered,
                  "pointer does not correspond to a registered memory region"),
    SOFTHIP_ERROR(hipErrorNotSupported, "operation not supported"),
    SOFTHIP_ERROR(hipErrorStreamCaptureUnsupported,
                  "operation not permitted when stream is capturing"),
    SOFTHIP_ERROR(hipErrorStreamCaptureInvalidated,
                  "operation failed due to a previous error during capture"),
    SOFTHIP_ERROR(hipErrorStreamCaptureUnmatched, "the capture was not initiated in this stream"),
    SOFTHIP_ERROR(hipErrorStreamCaptureIsolation,
                  "dependency created on uncaptured work in another stream"),
    SOFTHIP_ERROR(hipErrorStreamCaptureImplicit,
                  "operation would make the legacy stream depend on a capturing blocking stream"),
    SOFTHIP_ERROR(hipErrorCapturedEvent,
                  "operation not permitted on an event last recorded in a capture"),
    SOFTHIP_ERROR(hipErrorStreamCaptureWrongThread,
                  "attempt to terminate a thread-local capture sequence from another thread"),
};

const ErrorText* find_error(hipError_t code) {
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                   [&](const ErrorText& error) { return error.code == code; });
  return found == std::end(kErrors) ? nullptr : found;
}

const char* name_of(hipError_t code) {
  const ErrorText* error = find_error(code);
  return error != nullptr ? error->name : "hipErrorUnknown";
}

const char* text_of(hipError_t code) {
  const ErrorText* error = find_error(code);
  return error != nullptr ? error->text : "unknown error";
}

}  // namespace

int release() {
  static const int number = read_release();
  return number;
}

hipError_t to_hip(Result result) {
  switch (result.code()) {
    case Result::kNotPermitted:  // HIP has no such numbers
    case Result::kSystemNotReady:
      return hipErrorNotInitialized;
    default:
      return static_cast<hipError_t>(result.code());
  }
}

hipError_t remember(hipError_t result) {
  // Before 7.0 a later success clears an error.
  if (result != hipSuccess || release() < 700) last_error = result;
  return result;
}

Result start() noexcept {
  Process& process = Process::get();
  if (process.ready && !process.forked) return Result::kSuccess;
  try {
    return process.init(Vendor::kAmd);
  } catch (...) {
    return Result::kUnknown;
  }
}

int& current_device() {
  thread_local int ordinal = 0;
  return ordinal;
}

std::shared_ptr<Context> current_context_of(Process& process) {
  return primary_context(process, current_device());
}

SOFTHIP_API hipGetLastError() { return std::exchange(last_error, hipSuccess); }
SOFTHIP_API hipExtGetLastError() { return std::exchange(last_error, hipSuccess); }

SOFTHIP_API hipPeekAtLastError() { return last_error; }

SOFTHIP_EXPORT const char* hipGetErrorName(hipError_t code) { return name_of(code); }

SOFTHIP_EXPORT const char* hipGetErrorString(hipError_t code) { return text_of(code); }

SOFTHIP_API hipDrvGetErrorName(hipError_t code, const char** name) {
  if (name == nullptr) return hipErrorInvalidValue;
  *name = name_of(code);
  return find_error(code) != nullptr ? hipSuccess : hipErrorInvalidValue;
}

SOFTHIP_API hipDrvGetErrorString(hipError_t code, const char** text) {
  if (text == nullptr) return hipErrorInvalidValue;
  *text = text_of(code);
  return find_error(code) != nullptr ? hipSuccess : hipErrorInvalidValue;
}

}  // namespace gcr::softgpu::hip
