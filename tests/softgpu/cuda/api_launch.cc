// Modules, libraries, functions, launches.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/softgpu/cuda/launch.h"
#include "tests/softgpu/cuda/ptx.h"
#include "tests/softgpu/cuda/stream_api.h"

namespace gcr::softgpu {
namespace {

CUresult load(CUmodule* handle, const void* image) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    Image read;
    if (const CUresult result = read_image(image, &read)) return result;
    std::shared_ptr<Module> module;
    if (const CUresult result = load_module(process, context, read, &module)) return result;
    *handle = reinterpret_cast<CUmodule>(module.get());
    return CUDA_SUCCESS;
  });
}

bool read_whole_file(const char* path, std::string* text) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  text->assign(std::istreambuf_iterator<char>(file), {});
  return true;
}

CUresult launch_config(DefaultStream flavour, const CUlaunchConfig* config, CUfunction function,
                       void** parameters, void** extra) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, config->hStream, flavour);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    Operation operation;
    if (const CUresult result =
            make_launch(process, context, *config, function, parameters, extra, &operation)) {
      return result;
    }
    return stream->context->submit(*stream, std::move(operation));
  });
}

CUresult launch(DefaultStream flavour, CUfunction function, unsigned grid_x, unsigned grid_y,
                unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                unsigned shared, CUstream stream, void** parameters, void** extra) {
  const CUlaunchConfig config{grid_x,  grid_y, grid_z, block_x, block_y,
                              block_z, shared, stream, nullptr, 0};
  return launch_config(flavour, &config, function, parameters, extra);
}

CUresult launch_cooperative(DefaultStream flavour, CUfunction function, unsigned grid_x,
                            unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                            unsigned block_z, unsigned shared, CUstream stream, void** parameters) {
  return launch(flavour, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
                stream, parameters, nullptr);
}

}  // namespace

CUresult make_launch(Process& process, Context& context, const CUlaunchConfig& config,
                     const void* function, void** parameters, void** extra, Operation* operation) {
  LaunchRequest request;
  request.grid = {config.gridDimX, config.gridDimY, config.gridDimZ};
  request.block = {config.blockDimX, config.blockDimY, config.blockDimZ};
  request.each = parameters;
  for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) request.buffer = extra[1];
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      request.buffer_bytes = *static_cast<std::size_t*>(extra[1]);
    }
  }
  return make_launch(process, context, request, function, operation);
}

SOFTGPU_API cuModuleLoadData(CUmodule* module, const void* image) { return load(module, image); }

SOFTGPU_API cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*,
                               void**) {
  return load(module, image);
}

SOFTGPU_API cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load(module, image);
}

SOFTGPU_API cuModuleLoad(CUmodule* module, const char* path) {
  std::string text;
  return read_whole_file(path, &text) ? load(module, text.c_str()) : CUDA_ERROR_FILE_NOT_FOUND;
}

SOFTGPU_API cuModuleUnload(CUmodule handle) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto module = process.modules.take(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult fault = context.synchronize()) return fault;
    unload_module(process, *module);
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  return call([&](Process& process) {
    const auto module = process.modules.get(handle);
    if (!module || name == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const auto found = module->functions.find(name);
    if (found == module->functions.end()) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(found->second.get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* bytes, CUmodule handle,
                                 const char* name) {
  return call([&](Process& process) {
    const auto module = process.modules.get(handle);
    if (!module || name == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const auto found = module->globals.find(name);
    if (found == module->globals.end()) return CUDA_ERROR_NOT_FOUND;
    if (address != nullptr) *address = found->second.address;
    if (bytes != nullptr) *bytes = found->second.bytes;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuLibraryLoadData(CUlibrary* handle, const void* image, CUjit_option*, void**, unsigned,
                              CUlibraryOption*, void**, unsigned) {
  return call([&](Process& process) -> CUresult {
    Image read;
    if (const CUresult result = read_image(image, &read)) return result;
    *handle = reinterpret_cast<CUlibrary>(load_library(process, std::move(read)).get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuLibraryUnload(CUlibrary library) {
  return call([&](Process& process) { return unload_library(process, library); });
}

SOFTGPU_API cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
  return call([&](Process& process) {
    const auto library = process.libraries.get(handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    const auto found = library->kernels.find(name);
    if (found == library->kernels.end()) return CUDA_ERROR_NOT_FOUND;
    *kernel = reinterpret_cast<CUkernel>(found->second.get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuLibraryGetModule(CUmodule* handle, CUlibrary library_handle) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto library = process.libraries.get(library_handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    std::shared_ptr<Module> module;
    const CUresult result = module_of(process, *library, context, &module);
    if (result == CUDA_SUCCESS) *handle = reinterpret_cast<CUmodule>(module.get());
    return result;
  });
}

SOFTGPU_API cuLibraryGetGlobal(CUdeviceptr* address, std::size_t* bytes, CUlibrary handle,
                               const char* name) {
  CUmodule module = nullptr;
  if (const CUresult result = cuLibraryGetModule(&module, handle)) return result;
  return cuModuleGetGlobal_v2(address, bytes, module, name);
}

SOFTGPU_API cuLibraryGetManaged(CUdeviceptr* address, std::size_t* bytes, CUlibrary handle,
                                const char* name) {
  return call([&](Process& process) -> CUresult {
    CUdeviceptr found = 0;
    if (const CUresult result = cuLibraryGetGlobal(&found, bytes, handle, name)) return result;
    if (process.memory.find(found).kind != RangeKind::kManaged) return CUDA_ERROR_NOT_FOUND;
    if (address != nullptr) *address = found;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    std::shared_ptr<Function> found;
    const CUresult result = resolve_function(process, context, kernel, &found);
    if (result == CUDA_SUCCESS) *function = reinterpret_cast<CUfunction>(found.get());
    return result;
  });
}

SOFTGPU_API cuFuncGetAttribute(int* value, CUfunction_attribute what, CUfunction handle) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    std::shared_ptr<Function> function;
    if (const CUresult result = resolve_function(process, context, handle, &function)) {
      return result;
    }
    switch (what) {
      case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = kMaxThreads;
        break;
      case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 32;
        break;
      case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = 70;
        break;
      case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->max_dynamic_shared;
        break;
      default:
        *value = 0;
    }
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuFuncSetAttribute(CUfunction handle, CUfunction_attribute what, int value) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    std::shared_ptr<Function> function;
    if (const CUresult result = resolve_function(process, context, handle, &function)) {
      return result;
    }
    if (what == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
      function->max_dynamic_shared = value;
    }
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
  return call([&](Process& process) {
    return process.functions.get(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

SOFTGPU_API cuFuncGetName(const char** name, CUfunction handle) {
  return call([&](Process& process) {
    const auto function = process.functions.get(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name.c_str();
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuFuncGetModule(CUmodule* module, CUfunction handle) {
  return call([&](Process& process) {
    const auto function = process.functions.get(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    *module = reinterpret_cast<CUmodule>(function->module);
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuFuncGetParamInfo(CUfunction handle, std::size_t index, std::size_t* offset,
                               std::size_t* bytes) {
  return call([&](Process& process) {
    const auto function = process.functions.get(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (index >= function->entry.parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = function->entry.parameters[index].offset;
    if (bytes != nullptr) *bytes = function->entry.parameters[index].bytes;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads,
                                                        std::size_t) {
  return call([&](Process&) {
    if (threads <= 0) return CUDA_ERROR_INVALID_VALUE;
    *blocks = std::max(1, 2048 / threads);
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function,
                                                                 int threads, std::size_t shared,
                                                                 unsigned) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

SOFTGPU_BOTH(cuLaunchKernel, cuLaunchKernel_ptsz, launch,
             (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
              CUstream stream, void** parameters, void** extra),
             function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
             parameters, extra)
SOFTGPU_BOTH(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz, launch_cooperative,
             (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
              CUstream stream, void** parameters),
             function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
             parameters)
SOFTGPU_BOTH(cuLaunchKernelEx, cuLaunchKernelEx_ptsz, launch_config,
             (const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra),
             config, function, parameters, extra)

}  // namespace gcr::softgpu
