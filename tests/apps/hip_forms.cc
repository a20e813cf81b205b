#include "tests/apps/hip_forms.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "preload/hip/abi/hip_abi.h"
#include "tests/apps/driver.h"
#include "tests/apps/kernels_hip.h"
#include "tests/apps/kernels_ptx.h"

namespace gcr::apps {
namespace {

static_assert(sizeof(CUdeviceptr) == sizeof(hipDeviceptr_t));
static_assert(sizeof(CUmemGenericAllocationHandle) == sizeof(hipMemGenericAllocationHandle_t));
static_assert(sizeof(CUipcMemHandle) == sizeof(hipIpcMemHandle_t));
static_assert(sizeof(CUmemAccessDesc) == sizeof(hipMemAccessDesc));
static_assert(offsetof(CUmemAccessDesc, flags) == offsetof(hipMemAccessDesc, flags));
static_assert(sizeof(CUmemAllocationProp) >= sizeof(hipMemAllocationPropR0503));
static_assert(offsetof(CUmemAllocationProp, requestedHandleTypes) ==
              offsetof(hipMemAllocationPropR0503, requestedHandleTypes));
static_assert(offsetof(CUmemAllocationProp, location) ==
              offsetof(hipMemAllocationPropR0503, location));
static_assert(offsetof(CUmemAllocationProp, allocFlags) ==
              offsetof(hipMemAllocationPropR0503, allocFlags));

constexpr bool same(int cuda, int hip) { return cuda == hip; }
static_assert(same(CUDA_SUCCESS, hipSuccess));
static_assert(same(CU_MEM_ALLOCATION_TYPE_PINNED, hipMemAllocationTypePinned));
static_assert(same(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, hipMemHandleTypePosixFileDescriptor));
static_assert(same(CU_MEM_LOCATION_TYPE_DEVICE, hipMemLocationTypeDevice));
static_assert(same(CU_MEM_LOCATION_TYPE_HOST_NUMA, hipMemLocationTypeHostNuma));
static_assert(same(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, hipMemAccessFlagsProtReadWrite));
static_assert(same(CU_MEM_ALLOC_GRANULARITY_MINIMUM, hipMemAllocationGranularityMinimum));
static_assert(same(CU_STREAM_NON_BLOCKING, hipStreamNonBlocking));
static_assert(same(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, hipStreamCaptureModeThreadLocal));

/// Since this release a descriptor is imported by its value, before by its address.
constexpr int kFirstThatImportsByValue = 70'100'000;

void* hip_library = nullptr;
int hip_version = 0;

template <class Function>
Function* find(void* library, const char* name) {
  void* function = ::dlsym(library, name);
  if (function == nullptr) fail("find a function of HIP", name);
  return reinterpret_cast<Function*>(function);
}

int version() {
  int number = 0;
  find<hipError_t(int*)>(hip_library, "hipRuntimeGetVersion")(&number);
  return number;
}

/// hipRTC, of the same release: in HIP's own library up to ROCm 5, then in a separate one.
void* compiler() {
  if (::dlsym(hip_library, "hiprtcCreateProgram") != nullptr) return hip_library;
  link_map* map = nullptr;
  if (::dlinfo(hip_library, RTLD_DI_LINKMAP, &map) != 0) fail("find hipRTC", ::dlerror());
  const std::string path = map->l_name;
  const std::string own = "libamdhip64";
  const std::size_t at = path.rfind(own);
  if (at == std::string::npos) fail("find hipRTC", "HIP's library is called " + path);
  void* library =
      ::dlopen((path.substr(0, at) + "libhiprtc" + path.substr(at + own.size())).c_str(),
               RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail("load hipRTC", ::dlerror());
  return library;
}

/// Calls two functions of hipRTC on a program: the one for the size, and the one for the content.
std::string text_of(void* library, hiprtcProgram program, const char* size, const char* get) {
  std::size_t bytes = 0;
  std::string text;
  if (find<hiprtcResult(hiprtcProgram, std::size_t*)>(library, size)(program, &bytes) ==
      HIPRTC_SUCCESS) {
    text.resize(bytes);
  }
  if (bytes == 0 || find<hiprtcResult(hiprtcProgram, char*)>(library, get)(program, text.data()) !=
                        HIPRTC_SUCCESS) {
    fail("compile the kernels", std::string(get) + " gives nothing");
  }
  return text;
}

std::string compile_kernels() {
  void* library = compiler();
  const auto create =
      find<hiprtcResult(hiprtcProgram*, const char*, const char*, int, const char**, const char**)>(
          library, "hiprtcCreateProgram");
  const auto compile =
      find<hiprtcResult(hiprtcProgram, int, const char**)>(library, "hiprtcCompileProgram");
  hiprtcProgram program = nullptr;
  if (create(&program, kKernelsHip, "kernels.cu", 0, nullptr, nullptr) != HIPRTC_SUCCESS) {
    fail("compile the kernels", "hipRTC does not start");
  }
  const char* options[] = {"-std=c++17", "-O3"};
  if (compile(program, 2, options) != HIPRTC_SUCCESS) {
    fail("compile the kernels",
         text_of(library, program, "hiprtcGetProgramLogSize", "hiprtcGetProgramLog"));
  }
  std::string code = text_of(library, program, "hiprtcGetCodeSize", "hiprtcGetCode");
  find<hiprtcResult(hiprtcProgram*)>(library, "hiprtcDestroyProgram")(&program);
  return code;
}

const void* code_of(const void* image) {
  if (image != kKernelsPtx) return image;
  static const std::string code = compile_kernels();
  return code.data();
}

CUresult load_module(CUmodule* module, const void* image) {
  static const auto load =
      find<hipError_t(hipModule_t*, const void*)>(hip_library, "hipModuleLoadData");
  return static_cast<CUresult>(load(reinterpret_cast<hipModule_t*>(module), code_of(image)));
}

CUresult import_memory(CUmemGenericAllocationHandle* handle, void* file,
                       CUmemAllocationHandleType type) {
  static const auto import =
      find<hipError_t(hipMemGenericAllocationHandle_t*, void*, hipMemAllocationHandleType)>(
          hip_library, "hipMemImportFromShareableHandle");
  auto number = static_cast<int>(reinterpret_cast<std::intptr_t>(file));
  return static_cast<CUresult>(import(reinterpret_cast<hipMemGenericAllocationHandle_t*>(handle),
                                      hip_version >= kFirstThatImportsByValue ? file : &number,
                                      static_cast<hipMemAllocationHandleType>(type)));
}

CUresult error_name(CUresult result, const char** name) {
  static const auto get = find<const char*(hipError_t)>(hip_library, "hipGetErrorName");
  *name = get(static_cast<hipError_t>(result));
  return CUDA_SUCCESS;
}

CUresult attribute(int* value, CUdevice_attribute what, CUdevice) {
  *value = 0;
  return what == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

const HipForms& hip_forms(void* library) {
  hip_library = library;
  hip_version = version();
  static const HipForms forms{hip_version, error_name,    attribute,
                              load_module, import_memory, code_of};
  return forms;
}

}  // namespace gcr::apps
