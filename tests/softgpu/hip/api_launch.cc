// Launches.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "tests/softgpu/engine/streams.h"
#include "tests/softgpu/hip/launch.h"
#include "tests/softgpu/hip/registered.h"

namespace gcr::softgpu::hip {
namespace {

hipError_t launch_in(DefaultStream flavour, const void* function, dim3 grid, dim3 block,
                     void** parameters, void** extra, hipStream_t handle,
                     hipEvent_t before = nullptr, hipEvent_t after = nullptr) {
  return call_in_stream(
      flavour, handle, [&](Process& process, const std::shared_ptr<Stream>& stream) -> hipError_t {
        Operation operation;
        const hipError_t made = make_launch(process, *stream->context, grid, block, function,
                                            parameters, extra, &operation);
        if (made != hipSuccess) return made;
        Result result;
        if (before != nullptr) result = record_event(process, before, *stream);
        if (!result) result = stream->context->submit(*stream, std::move(operation));
        if (!result && after != nullptr) result = record_event(process, after, *stream);
        return to_hip(result);
      });
}

hipError_t launch_registered(DefaultStream flavour, const void* function, dim3 grid, dim3 block,
                             void** parameters, std::size_t, hipStream_t stream) {
  return launch_in(flavour, function, grid, block, parameters, nullptr, stream);
}

hipError_t launch_cooperative(DefaultStream flavour, const void* function, dim3 grid, dim3 block,
                              void** parameters, unsigned, hipStream_t stream) {
  return launch_in(flavour, function, grid, block, parameters, nullptr, stream);
}

/// Functions of hip_ext.h count threads where the others count blocks.
hipError_t launch_threads(hipFunction_t function, dim3 threads, dim3 block, hipStream_t stream,
                          void** parameters, void** extra, hipEvent_t before, hipEvent_t after) {
  if (block.x == 0 || block.y == 0 || block.z == 0) return remember(hipErrorInvalidConfiguration);
  const dim3 grid{(threads.x + block.x - 1) / block.x, (threads.y + block.y - 1) / block.y,
                  (threads.z + block.z - 1) / block.z};
  return launch_in(DefaultStream::kLegacy, function, grid, block, parameters, extra, stream, before,
                   after);
}

/// The configuration that `<<<...>>>` sets for the next launch in the thread.
struct Configuration {
  dim3 grid;
  dim3 block;
  std::size_t shared = 0;
  hipStream_t stream = nullptr;
  std::vector<char> arguments;  ///< of hipSetupArgument
};

std::vector<Configuration>& configurations() {
  thread_local auto& stack = *new std::vector<Configuration>;
  return stack;
}

hipError_t push(dim3 grid, dim3 block, std::size_t shared, hipStream_t stream) {
  configurations().push_back({grid, block, shared, stream, {}});
  return remember(hipSuccess);
}

}  // namespace

hipError_t make_launch(Process& process, Context& context, dim3 grid, dim3 block,
                       const void* function, void** parameters, void** extra,
                       Operation* operation) {
  const void* kernel = function;
  if (!process.functions.get(function) && !process.kernels.get(function)) {
    const Result result = find_registered_kernel(process, function, &kernel);
    if (result == Result::kNotFound) return hipErrorInvalidDeviceFunction;
    if (result) return to_hip(result);
  }
  LaunchRequest request;
  request.grid = {grid.x, grid.y, grid.z};
  request.block = {block.x, block.y, block.z};
  request.each = parameters;
  for (; extra != nullptr && *extra != HIP_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == HIP_LAUNCH_PARAM_BUFFER_POINTER) request.buffer = extra[1];
    if (extra[0] == HIP_LAUNCH_PARAM_BUFFER_SIZE) {
      request.buffer_bytes = *static_cast<std::size_t*>(extra[1]);
    }
  }
  return to_hip(softgpu::make_launch(process, context, request, kernel, operation));
}

SOFTHIP_API hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y,
                                  unsigned grid_z, unsigned block_x, unsigned block_y,
                                  unsigned block_z, unsigned, hipStream_t stream, void** parameters,
                                  void** extra) {
  return launch_in(DefaultStream::kLegacy, function, {grid_x, grid_y, grid_z},
                   {block_x, block_y, block_z}, parameters, extra, stream);
}

SOFTHIP_API hipModuleLaunchCooperativeKernel(hipFunction_t function, unsigned grid_x,
                                             unsigned grid_y, unsigned grid_z, unsigned block_x,
                                             unsigned block_y, unsigned block_z, unsigned,
                                             hipStream_t stream, void** parameters) {
  return launch_in(DefaultStream::kLegacy, function, {grid_x, grid_y, grid_z},
                   {block_x, block_y, block_z}, parameters, nullptr, stream);
}

#define SOFTHIP_LAUNCH_THREADS_PARAMETERS                                                      \
  hipFunction_t function, std::uint32_t threads_x, std::uint32_t threads_y,                    \
      std::uint32_t threads_z, std::uint32_t block_x, std::uint32_t block_y,                   \
      std::uint32_t block_z, std::size_t, hipStream_t stream, void **parameters, void **extra, \
      hipEvent_t before, hipEvent_t after
#define SOFTHIP_LAUNCH_THREADS                                                                     \
  launch_threads(function, {threads_x, threads_y, threads_z}, {block_x, block_y, block_z}, stream, \
                 parameters, extra, before, after)

SOFTHIP_API hipExtModuleLaunchKernel(SOFTHIP_LAUNCH_THREADS_PARAMETERS, std::uint32_t) {
  return SOFTHIP_LAUNCH_THREADS;
}
SOFTHIP_API hipHccModuleLaunchKernel(SOFTHIP_LAUNCH_THREADS_PARAMETERS) {
  return SOFTHIP_LAUNCH_THREADS;
}
// The same as C++ functions; these are their mangled names.
SOFTHIP_API
_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j(
    SOFTHIP_LAUNCH_THREADS_PARAMETERS, std::uint32_t) {
  return SOFTHIP_LAUNCH_THREADS;
}
SOFTHIP_API
_Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_(
    SOFTHIP_LAUNCH_THREADS_PARAMETERS) {
  return SOFTHIP_LAUNCH_THREADS;
}

SOFTHIP_BOTH(hipLaunchKernel, launch_registered,
             (const void* function, dim3 grid, dim3 block, void** parameters, std::size_t shared,
              hipStream_t stream),
             function, grid, block, parameters, shared, stream)
SOFTHIP_BOTH(hipLaunchCooperativeKernel, launch_cooperative,
             (const void* function, dim3 grid, dim3 block, void** parameters, unsigned shared,
              hipStream_t stream),
             function, grid, block, parameters, shared, stream)

/// Each in the stream that it names.
SOFTHIP_API hipLaunchCooperativeKernelMultiDevice(hipLaunchParams* launches, int count, unsigned) {
  if (launches == nullptr || count <= 0) return remember(hipErrorInvalidValue);
  for (const hipLaunchParams& one : std::span(launches, static_cast<std::size_t>(count))) {
    const hipError_t launched = launch_in(DefaultStream::kLegacy, one.func, one.gridDim,
                                          one.blockDim, one.args, nullptr, one.stream);
    if (launched != hipSuccess) return launched;
  }
  return hipSuccess;
}

SOFTHIP_API hipExtLaunchKernel(const void* function, dim3 grid, dim3 block, void** parameters,
                               std::size_t, hipStream_t stream, hipEvent_t before, hipEvent_t after,
                               int) {
  return launch_in(DefaultStream::kLegacy, function, grid, block, parameters, nullptr, stream,
                   before, after);
}

// NOLINTBEGIN(bugprone-reserved-identifier): HIP's names
SOFTHIP_API __hipPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                       hipStream_t stream) {
  return push(grid, block, shared, stream);
}

SOFTHIP_API __hipPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared,
                                      hipStream_t* stream) {
  if (configurations().empty()) return remember(hipErrorMissingConfiguration);
  const Configuration last = std::move(configurations().back());
  configurations().pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *stream = last.stream;
  return remember(hipSuccess);
}
// NOLINTEND(bugprone-reserved-identifier)

SOFTHIP_API hipConfigureCall(dim3 grid, dim3 block, std::size_t shared, hipStream_t stream) {
  return push(grid, block, shared, stream);
}

SOFTHIP_API hipSetupArgument(const void* argument, std::size_t bytes, std::size_t offset) {
  if (configurations().empty()) return remember(hipErrorMissingConfiguration);
  std::vector<char>& arguments = configurations().back().arguments;
  arguments.resize(std::max(arguments.size(), offset + bytes));
  std::memcpy(arguments.data() + offset, argument, bytes);
  return remember(hipSuccess);
}

/// Launches with the configuration and the arguments that were set up, through its own interface.
SOFTHIP_API hipLaunchByPtr(const void* host_function) {
  if (configurations().empty()) return remember(hipErrorMissingConfiguration);
  Configuration last = std::move(configurations().back());
  configurations().pop_back();
  const void* kernel = nullptr;
  const hipError_t found = call([&](Process& process) {
    return find_registered_kernel(process, host_function, &kernel) ? hipErrorInvalidDeviceFunction
                                                                   : hipSuccess;
  });
  if (found != hipSuccess) return found;
  std::size_t bytes = last.arguments.size();
  void* extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, last.arguments.data(),
                   HIP_LAUNCH_PARAM_BUFFER_SIZE, &bytes, HIP_LAUNCH_PARAM_END};
  return hipModuleLaunchKernel(handle_of<hipFunction_t>(kernel), last.grid.x, last.grid.y,
                               last.grid.z, last.block.x, last.block.y, last.block.z,
                               static_cast<unsigned>(last.shared), last.stream, nullptr, extra);
}

/// Called by the launches of older compilers, again through the library's own interface.
SOFTHIP_EXPORT void _ZN8hip_impl22hipLaunchKernelGGLImplEmRK4dim3S2_jP12ihipStream_tPPv(
    std::uintptr_t function, const dim3& grid, const dim3& block, std::uint32_t shared,
    hipStream_t stream, void** extra) {
  const void* kernel = nullptr;
  const hipError_t found = call([&](Process& process) {
    return to_hip(find_registered_kernel(process, pointer_to(function), &kernel));
  });
  if (found != hipSuccess) return;
  hipModuleLaunchKernel(handle_of<hipFunction_t>(kernel), grid.x, grid.y, grid.z, block.x, block.y,
                        block.z, shared, stream, nullptr, extra);
}

}  // namespace gcr::softgpu::hip
