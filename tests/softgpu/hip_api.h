// HIP's functions as the tests call them: looked up in one library file, never linked.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "preload/hip/abi/hip_abi.h"

namespace gcr::softgpu::test {

// Those that the preload library's table does not name.
#define SOFTHIP_TEST_MORE(X)                                                                   \
  X(void**, __hipRegisterFatBinary, (const void*))                                             \
  X(void, __hipRegisterVar, (void**, void*, char*, const char*, int, std::size_t, int, int))   \
  X(hipError_t, __hipPushCallConfiguration, (dim3, dim3, std::size_t, hipStream_t))            \
  X(hipError_t, __hipPopCallConfiguration, (dim3*, dim3*, std::size_t*, hipStream_t*))         \
  X(hipError_t, hipStreamQuery, (hipStream_t))                                                 \
  X(hipError_t, hipStreamQuery_spt, (hipStream_t))                                             \
  X(hipError_t, hipGraphCreate, (hipGraph_t*, unsigned))                                       \
  X(hipError_t, hipGraphAddMemcpyNode1D,                                                       \
    (hipGraphNode_t*, hipGraph_t, const hipGraphNode_t*, std::size_t, void*, const void*,      \
     std::size_t, hipMemcpyKind))                                                              \
  X(hipError_t, hipGraphAddMemsetNode,                                                         \
    (hipGraphNode_t*, hipGraph_t, const hipGraphNode_t*, std::size_t, const hipMemsetParams*)) \
  X(hipError_t, hipGraphNodeGetType, (hipGraphNode_t, hipGraphNodeType*))

#define SOFTHIP_TEST_COMPILER(X)                                                    \
  X(hiprtcResult, hiprtcCreateProgram,                                              \
    (hiprtcProgram*, const char*, const char*, int, const char**, const char**))    \
  X(hiprtcResult, hiprtcCompileProgram, (hiprtcProgram, int, const char**))         \
  X(hiprtcResult, hiprtcGetProgramLogSize, (hiprtcProgram, std::size_t*))           \
  X(hiprtcResult, hiprtcGetProgramLog, (hiprtcProgram, char*))                      \
  X(hiprtcResult, hiprtcGetCodeSize, (hiprtcProgram, std::size_t*))                 \
  X(hiprtcResult, hiprtcGetCode, (hiprtcProgram, char*))                            \
  X(hiprtcResult, hiprtcAddNameExpression, (hiprtcProgram, const char*))            \
  X(hiprtcResult, hiprtcGetLoweredName, (hiprtcProgram, const char*, const char**)) \
  X(hiprtcResult, hiprtcDestroyProgram, (hiprtcProgram*))

struct HipApi {
#define SOFTHIP_TEST_MEMBER(result, symbol, parameters) result(*symbol) parameters = nullptr;
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  SOFTHIP_TEST_MEMBER(result, symbol, params)
#include "preload/hip/hip_api.def"
  SOFTHIP_TEST_MORE(SOFTHIP_TEST_MEMBER)
  SOFTHIP_TEST_COMPILER(SOFTHIP_TEST_MEMBER)
#undef SOFTHIP_TEST_MEMBER

  /// Loads the libraries, or ends the program. A missing function stays null.
  HipApi(const char* runtime, const char* compiler) {
    void* library = open(runtime);
#define SOFTHIP_TEST_LOAD(result, symbol, parameters) \
  this->symbol = reinterpret_cast<result(*) parameters>(::dlsym(library, #symbol));
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  SOFTHIP_TEST_LOAD(result, symbol, params)
#include "preload/hip/hip_api.def"
    SOFTHIP_TEST_MORE(SOFTHIP_TEST_LOAD)
    library = open(compiler);
    SOFTHIP_TEST_COMPILER(SOFTHIP_TEST_LOAD)
#undef SOFTHIP_TEST_LOAD
  }

 private:
  static void* open(const char* path) {
    void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      std::abort();
    }
    return library;
  }
};

}  // namespace gcr::softgpu::test
