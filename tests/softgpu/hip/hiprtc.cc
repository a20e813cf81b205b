// hipRTC: the compiler. It compiles any program whose kernels' parameters it can parse; loading
// decides whether the engine knows the kernels.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "preload/hip/abi/hip_abi.h"
#include "tests/softgpu/hip/code_object.h"
#include "tests/softgpu/hip/kernel_source.h"

#define SOFTHIP_RTC_EXPORT extern "C" __attribute__((visibility("default")))
#define SOFTHIP_RTC_API SOFTHIP_RTC_EXPORT hiprtcResult

namespace gcr::softgpu::hip {
namespace {

struct Program {
  std::vector<std::string> texts;  ///< headers, then the program
  std::vector<std::string> expressions;
  KernelSource source;
  std::string code;
  bool compiled = false;
};

Program* program_of(hiprtcProgram handle) { return reinterpret_cast<Program*>(handle); }

hiprtcResult compile(Program* program) {
  std::vector<std::string_view> texts(program->texts.begin(), program->texts.end());
  program->source = read_source(texts);
  program->compiled = program->source.errors.empty();
  if (!program->compiled) return HIPRTC_ERROR_COMPILATION;
  program->code = write_code(program->source.image);
  return HIPRTC_SUCCESS;
}

hiprtcResult put_text(const std::string& text, char* to) {
  if (to == nullptr) return HIPRTC_ERROR_INVALID_INPUT;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return HIPRTC_SUCCESS;
}

hiprtcResult put_size(const std::string& text, std::size_t* bytes) {
  if (bytes == nullptr) return HIPRTC_ERROR_INVALID_INPUT;
  *bytes = text.size() + 1;
  return HIPRTC_SUCCESS;
}

}  // namespace

SOFTHIP_RTC_API hiprtcVersion(int* major, int* minor) {
  if (major == nullptr || minor == nullptr) return HIPRTC_ERROR_INVALID_INPUT;
  *major = 9;
  *minor = 0;
  return HIPRTC_SUCCESS;
}

SOFTHIP_RTC_EXPORT const char* hiprtcGetErrorString(hiprtcResult result) {
  switch (result) {
    case HIPRTC_SUCCESS:
      return "HIPRTC_SUCCESS";
    case HIPRTC_ERROR_INVALID_INPUT:
      return "HIPRTC_ERROR_INVALID_INPUT";
    case HIPRTC_ERROR_INVALID_PROGRAM:
      return "HIPRTC_ERROR_INVALID_PROGRAM";
    case HIPRTC_ERROR_COMPILATION:
      return "HIPRTC_ERROR_COMPILATION";
    case HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION:
      return "HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION";
    case HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION:
      return "HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION";
    case HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID:
      return "HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    default:
      return "HIPRTC_ERROR_INTERNAL_ERROR";
  }
}

SOFTHIP_RTC_API hiprtcCreateProgram(hiprtcProgram* handle, const char* source, const char*,
                                    int header_count, const char** headers, const char**) {
  if (handle == nullptr || source == nullptr || header_count < 0 ||
      (header_count > 0 && headers == nullptr)) {
    return HIPRTC_ERROR_INVALID_INPUT;
  }
  auto program = std::make_unique<Program>();
  program->texts.assign(headers, headers + header_count);
  program->texts.emplace_back(source);
  *handle = reinterpret_cast<hiprtcProgram>(program.release());
  return HIPRTC_SUCCESS;
}

SOFTHIP_RTC_API hiprtcDestroyProgram(hiprtcProgram* handle) {
  if (handle == nullptr || *handle == nullptr) return HIPRTC_ERROR_INVALID_PROGRAM;
  delete program_of(*handle);
  *handle = nullptr;
  return HIPRTC_SUCCESS;
}

SOFTHIP_RTC_API hiprtcCompileProgram(hiprtcProgram handle, int, const char**) {
  if (handle == nullptr) return HIPRTC_ERROR_INVALID_PROGRAM;
  try {
    return compile(program_of(handle));
  } catch (...) {
    return HIPRTC_ERROR_INTERNAL_ERROR;
  }
}

SOFTHIP_RTC_API hiprtcGetProgramLogSize(hiprtcProgram handle, std::size_t* bytes) {
  return handle == nullptr ? HIPRTC_ERROR_INVALID_PROGRAM
                           : put_size(program_of(handle)->source.errors, bytes);
}

SOFTHIP_RTC_API hiprtcGetProgramLog(hiprtcProgram handle, char* log) {
  return handle == nullptr ? HIPRTC_ERROR_INVALID_PROGRAM
                           : put_text(program_of(handle)->source.errors, log);
}

SOFTHIP_RTC_API hiprtcGetCodeSize(hiprtcProgram handle, std::size_t* bytes) {
  return handle == nullptr || !program_of(handle)->compiled
             ? HIPRTC_ERROR_INVALID_PROGRAM
             : put_size(program_of(handle)->code, bytes);
}

SOFTHIP_RTC_API hiprtcGetCode(hiprtcProgram handle, char* code) {
  return handle == nullptr || !program_of(handle)->compiled
             ? HIPRTC_ERROR_INVALID_PROGRAM
             : put_text(program_of(handle)->code, code);
}

SOFTHIP_RTC_API hiprtcAddNameExpression(hiprtcProgram handle, const char* expression) {
  if (handle == nullptr) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (expression == nullptr) return HIPRTC_ERROR_INVALID_INPUT;
  if (program_of(handle)->compiled) return HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION;
  program_of(handle)->expressions.emplace_back(expression);
  return HIPRTC_SUCCESS;
}

/// Names are as written: kernels that the engine knows are extern "C".
SOFTHIP_RTC_API hiprtcGetLoweredName(hiprtcProgram handle, const char* expression,
                                     const char** name) {
  if (handle == nullptr) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (expression == nullptr || name == nullptr) return HIPRTC_ERROR_INVALID_INPUT;
  const Program& program = *program_of(handle);
  if (!program.compiled) return HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION;
  const auto& kernels = program.source.image.entries;
  const auto kernel = std::ranges::find(kernels, expression, &ImageKernel::name);
  if (kernel == kernels.end() ||
      std::ranges::find(program.expressions, expression) == program.expressions.end()) {
    return HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
  }
  *name = kernel->name.c_str();
  return HIPRTC_SUCCESS;
}

}  // namespace gcr::softgpu::hip
