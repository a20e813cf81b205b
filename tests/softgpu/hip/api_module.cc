// Modules, libraries, functions, and their attributes.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/softgpu/hip/code_object.h"
#include "tests/softgpu/hip/registered.h"

namespace gcr::softgpu::hip {
namespace {

constexpr int kThreadsOfMultiprocessor = 2048;

hipError_t load_image(hipModule_t* handle, const void* code) {
  return call_in_context([&](Process& process, Context& context) -> Result {
    if (handle == nullptr) return Result::kInvalidValue;
    Image image;
    if (const Result result = read_code(code, &image)) return result;
    std::shared_ptr<Module> module;
    if (const Result result = load_module(process, context, image, &module)) return result;
    *handle = handle_of<hipModule_t>(module.get());
    return Result::kSuccess;
  });
}

hipError_t load_library_image(hipLibrary_t* handle, const void* code) {
  return call([&](Process& process) -> Result {
    if (handle == nullptr) return Result::kInvalidValue;
    Image image;
    if (const Result result = read_code(code, &image)) return result;
    *handle = handle_of<hipLibrary_t>(load_library(process, std::move(image)).get());
    return Result::kSuccess;
  });
}

bool read_whole_file(const char* path, std::string* text) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  text->assign(std::istreambuf_iterator<char>(file), {});
  return true;
}

/// Runs `body(process, function)` for a kernel that the program registered.
template <class Body>
hipError_t with_registered(const void* host_function, Body&& body) {
  return call_in_context([&](Process& process, Context& context) -> hipError_t {
    const void* kernel = nullptr;
    std::shared_ptr<Function> function;
    Result result = find_registered_kernel(process, host_function, &kernel);
    if (!result) result = resolve_function(process, context, kernel, &function);
    if (result == Result::kNotFound) return hipErrorInvalidDeviceFunction;
    return result ? to_hip(result) : body(*function);
  });
}

hipError_t put_occupancy(int* blocks, int threads) {
  return call([&](Process&) {
    if (blocks == nullptr || threads <= 0) return hipErrorInvalidValue;
    *blocks = std::max(1, kThreadsOfMultiprocessor / threads);
    return hipSuccess;
  });
}

hipError_t put_best_launch(int* grid, int* block) {
  return call([&](Process&) {
    if (grid == nullptr || block == nullptr) return hipErrorInvalidValue;
    *grid = kThreadsOfMultiprocessor / kMaxThreads;
    *block = kMaxThreads;
    return hipSuccess;
  });
}

}  // namespace

SOFTHIP_API hipModuleLoadData(hipModule_t* module, const void* image) {
  return load_image(module, image);
}
SOFTHIP_API hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned, hipJitOption*,
                                void**) {
  return load_image(module, image);
}
SOFTHIP_API hipModuleLoadFatBinary(hipModule_t* module, const void* image) {
  return load_image(module, image);
}
SOFTHIP_API hipModuleLoad(hipModule_t* module, const char* path) {
  std::string code;
  if (path == nullptr || !read_whole_file(path, &code)) return remember(hipErrorFileNotFound);
  return load_image(module, code.c_str());
}

SOFTHIP_API hipModuleUnload(hipModule_t handle) {
  return call([&](Process& process) -> Result {
    const auto module = process.modules.take(handle);
    if (!module) return Result::kInvalidHandle;
    const Result fault = module->context->synchronize();
    unload_module(process, *module);
    return fault;
  });
}

SOFTHIP_API hipModuleGetFunction(hipFunction_t* function, hipModule_t handle, const char* name) {
  return call([&](Process& process) {
    if (function == nullptr || name == nullptr || *name == '\0') return hipErrorInvalidValue;
    const auto module = process.modules.get(handle);
    if (!module) return hipErrorInvalidHandle;
    const auto found = module->functions.find(name);
    if (found == module->functions.end()) return hipErrorNotFound;
    *function = handle_of<hipFunction_t>(found->second.get());
    return hipSuccess;
  });
}

SOFTHIP_API hipModuleGetGlobal(hipDeviceptr_t* address, std::size_t* bytes, hipModule_t handle,
                               const char* name) {
  return call([&](Process& process) {
    if (name == nullptr) return hipErrorInvalidValue;
    const auto module = process.modules.get(handle);
    if (!module) return hipErrorInvalidHandle;
    const auto found = module->globals.find(name);
    if (found == module->globals.end()) return hipErrorNotFound;
    if (address != nullptr) *address = pointer_to(found->second.address);
    if (bytes != nullptr) *bytes = found->second.bytes;
    return hipSuccess;
  });
}

SOFTHIP_API hipLibraryLoadData(hipLibrary_t* library, const void* code, hipJitOption*, void**,
                               unsigned, hipLibraryOption*, void**, unsigned) {
  return load_library_image(library, code);
}

SOFTHIP_API hipLibraryLoadFromFile(hipLibrary_t* library, const char* path, hipJitOption*, void**,
                                   unsigned, hipLibraryOption*, void**, unsigned) {
  std::string code;
  if (path == nullptr || !read_whole_file(path, &code)) return remember(hipErrorFileNotFound);
  return load_library_image(library, code.c_str());
}

SOFTHIP_API hipLibraryUnload(hipLibrary_t library) {
  return call([&](Process& process) { return unload_library(process, library); });
}

SOFTHIP_API hipLibraryGetKernel(hipKernel_t* kernel, hipLibrary_t handle, const char* name) {
  return call([&](Process& process) {
    if (kernel == nullptr || name == nullptr) return hipErrorInvalidValue;
    const auto library = process.libraries.get(handle);
    if (!library) return hipErrorInvalidHandle;
    const auto found = library->kernels.find(name);
    if (found == library->kernels.end()) return hipErrorNotFound;
    *kernel = handle_of<hipKernel_t>(found->second.get());
    return hipSuccess;
  });
}

SOFTHIP_API hipLibraryGetKernelCount(unsigned* count, hipLibrary_t handle) {
  return call([&](Process& process) {
    if (count == nullptr) return hipErrorInvalidValue;
    const auto library = process.libraries.get(handle);
    if (!library) return hipErrorInvalidHandle;
    *count = static_cast<unsigned>(library->kernels.size());
    return hipSuccess;
  });
}

SOFTHIP_API hipLibraryEnumerateKernels(hipKernel_t* kernels, unsigned count, hipLibrary_t handle) {
  return call([&](Process& process) {
    if (kernels == nullptr) return hipErrorInvalidValue;
    const auto library = process.libraries.get(handle);
    if (!library) return hipErrorInvalidHandle;
    for (const auto& [name, kernel] : library->kernels) {
      if (count-- == 0) break;
      *kernels++ = handle_of<hipKernel_t>(kernel.get());
    }
    return hipSuccess;
  });
}

SOFTHIP_API hipKernelGetFunction(hipFunction_t* function, hipKernel_t kernel) {
  return call_in_context([&](Process& process, Context& context) -> Result {
    if (function == nullptr) return Result::kInvalidValue;
    std::shared_ptr<Function> found;
    const Result result = resolve_function(process, context, kernel, &found);
    if (!result) *function = handle_of<hipFunction_t>(found.get());
    return result;
  });
}

SOFTHIP_API hipGetFuncBySymbol(hipFunction_t* result, const void* host_function) {
  return with_registered(host_function, [&](const Function& function) {
    if (result == nullptr) return hipErrorInvalidValue;
    *result = handle_of<hipFunction_t>(&function);
    return hipSuccess;
  });
}

SOFTHIP_API hipFuncGetAttribute(int* value, hipFunction_attribute what, hipFunction_t handle) {
  return call_in_context([&](Process& process, Context& context) -> Result {
    if (value == nullptr) return Result::kInvalidValue;
    std::shared_ptr<Function> function;
    if (const Result result = resolve_function(process, context, handle, &function)) return result;
    switch (what) {
      case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = kMaxThreads;
        break;
      case HIP_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 32;
        break;
      case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->max_dynamic_shared;
        break;
      default:
        *value = 0;
    }
    return Result::kSuccess;
  });
}

SOFTHIP_API hipFuncGetAttributes(hipFuncAttributes* attributes, const void* host_function) {
  return with_registered(host_function, [&](const Function& function) {
    if (attributes == nullptr) return hipErrorInvalidValue;
    *attributes = {};
    attributes->maxThreadsPerBlock = kMaxThreads;
    attributes->numRegs = 32;
    attributes->maxDynamicSharedSizeBytes = function.max_dynamic_shared;
    return hipSuccess;
  });
}

SOFTHIP_API hipFuncSetAttribute(const void* host_function, hipFuncAttribute what, int value) {
  return with_registered(host_function, [&](Function& function) {
    if (what == hipFuncAttributeMaxDynamicSharedMemorySize) function.max_dynamic_shared = value;
    return hipSuccess;
  });
}

SOFTHIP_API hipFuncSetCacheConfig(const void*, hipFuncCache_t) {
  return call([](Process&) { return hipSuccess; });
}

SOFTHIP_EXPORT const char* hipKernelNameRef(const hipFunction_t handle) {
  const auto function = Process::get().functions.get(handle);
  return function ? function->name.c_str() : nullptr;
}

SOFTHIP_API hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                         std::size_t) {
  return put_occupancy(blocks, threads);
}
SOFTHIP_API hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                  int threads, std::size_t,
                                                                  unsigned) {
  return put_occupancy(blocks, threads);
}
SOFTHIP_API hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, hipFunction_t,
                                                               int threads, std::size_t) {
  return put_occupancy(blocks, threads);
}
SOFTHIP_API hipOccupancyMaxPotentialBlockSize(int* grid, int* block, const void*, std::size_t,
                                              int) {
  return put_best_launch(grid, block);
}
SOFTHIP_API hipModuleOccupancyMaxPotentialBlockSize(int* grid, int* block, hipFunction_t,
                                                    std::size_t, int) {
  return put_best_launch(grid, block);
}

SOFTHIP_API hipGetSymbolAddress(void** address, const void* symbol) {
  return call_in_context([&](Process& process, Context& context) {
    Global variable;
    if (address == nullptr) return hipErrorInvalidValue;
    if (find_registered_variable(process, context, symbol, &variable)) {
      return hipErrorInvalidSymbol;
    }
    *address = pointer_to(variable.address);
    return hipSuccess;
  });
}

SOFTHIP_API hipGetSymbolSize(std::size_t* bytes, const void* symbol) {
  return call_in_context([&](Process& process, Context& context) {
    Global variable;
    if (bytes == nullptr) return hipErrorInvalidValue;
    if (find_registered_variable(process, context, symbol, &variable)) {
      return hipErrorInvalidSymbol;
    }
    *bytes = variable.bytes;
    return hipSuccess;
  });
}

}  // namespace gcr::softgpu::hip
