#include "tests/softgpu/engine/module.h"

#include <algorithm>
#include <cstring>

#include "tests/softgpu/engine/process.h"

namespace gcr::softgpu {
namespace {

/// Lays the arguments out as the kernel's parameters.
Result pack_arguments(const ImageKernel& entry, const LaunchRequest& request,
                      std::vector<std::byte>* packed) {
  packed->resize(entry.parameter_bytes());
  if (request.each != nullptr) {
    for (std::size_t i = 0; i < entry.parameters.size(); ++i) {
      if (request.each[i] == nullptr) return Result::kInvalidValue;
      std::memcpy(packed->data() + entry.parameters[i].offset, request.each[i],
                  entry.parameters[i].bytes);
    }
    return Result::kSuccess;
  }
  if (packed->empty()) return Result::kSuccess;
  if (request.buffer == nullptr || request.buffer_bytes < packed->size()) {
    return Result::kInvalidValue;
  }
  std::memcpy(packed->data(), request.buffer, packed->size());
  return Result::kSuccess;
}

Result allocate(Process& process, Context& context, const ImageVariable& variable,
                std::uintptr_t* address) {
  const std::size_t bytes = std::max<std::size_t>(variable.bytes, 1);
  if (variable.managed) {
    return process.memory.allocate_host(bytes, &context, RangeKind::kManaged, 0, address);
  }
  return process.memory.allocate(context.ordinal, bytes, &context, RangeKind::kDriver, nullptr,
                                 address);
}

}  // namespace

void ImageKernel::add_parameter(std::size_t bytes, std::size_t alignment) {
  std::size_t offset = parameter_bytes();
  if (alignment != 0) offset = (offset + alignment - 1) / alignment * alignment;
  if (bytes != 0) parameters.push_back({offset, bytes});
}

Result Image::check() const {
  const bool known = std::ranges::all_of(
      entries, [](const ImageKernel& entry) { return find_kernel(entry.name) != nullptr; });
  return known ? Result::kSuccess : Result::kNoBinaryForGpu;
}

Result load_module(Process& process, Context& context, const Image& image,
                   std::shared_ptr<Module>* module) {
  auto fresh = std::make_shared<Module>();
  fresh->context = &context;
  for (const ImageVariable& variable : image.variables) {
    std::uintptr_t address = 0;
    if (const Result result = allocate(process, context, variable, &address)) {
      unload_module(process, *fresh);
      return result;
    }
    fresh->globals[variable.name] = {address, variable.bytes};
    std::memcpy(reinterpret_cast<void*>(address), variable.initial.data(),
                std::min(variable.initial.size(), variable.bytes));
  }
  for (const ImageKernel& entry : image.entries) {
    auto function = std::make_shared<Function>();
    function->name = entry.name;
    function->entry = entry;
    function->body = find_kernel(entry.name);
    function->module = fresh.get();
    function->instant = entry.name == "gcr_noop";
    fresh->functions[entry.name] = process.functions.add(function);
  }
  *module = process.modules.add(fresh);
  return Result::kSuccess;
}

void unload_module(Process& process, Module& module) {
  for (const auto& [name, function] : module.functions) process.functions.take(function.get());
  for (const auto& [name, global] : module.globals) {
    process.memory.free(global.address, bit(RangeKind::kDriver) | bit(RangeKind::kManaged));
  }
  module.globals.clear();
}

std::shared_ptr<Library> load_library(Process& process, Image image) {
  auto library = std::make_shared<Library>();
  library->image = std::move(image);
  for (const ImageKernel& entry : library->image.entries) {
    auto kernel = std::make_shared<Kernel>();
    kernel->name = entry.name;
    kernel->library = library.get();
    library->kernels[entry.name] = process.kernels.add(std::move(kernel));
  }
  return process.libraries.add(std::move(library));
}

Result unload_library(Process& process, const void* handle) {
  const auto library = process.libraries.take(handle);
  if (!library) return Result::kInvalidHandle;
  for (const auto& context : process.contexts.all()) context->synchronize();
  for (const auto& [name, kernel] : library->kernels) process.kernels.take(kernel.get());
  for (const auto& [context, module] : library->modules) {
    unload_module(process, *module);
    process.modules.take(module.get());
  }
  return Result::kSuccess;
}

Result module_of(Process& process, Library& library, Context& context,
                 std::shared_ptr<Module>* module) {
  std::lock_guard lock(library.mutex);
  auto& known = library.modules[&context];
  if (!known) {
    if (const Result result = load_module(process, context, library.image, &known)) {
      library.modules.erase(&context);
      return result;
    }
  }
  *module = known;
  return Result::kSuccess;
}

Result resolve_function(Process& process, Context& context, const void* handle,
                        std::shared_ptr<Function>* function) {
  *function = process.functions.get(handle);
  if (*function) return Result::kSuccess;
  const auto kernel = process.kernels.get(handle);
  if (!kernel) return Result::kInvalidHandle;
  std::shared_ptr<Module> module;
  if (const Result result = module_of(process, *kernel->library, context, &module)) {
    return result;
  }
  *function = module->functions.at(kernel->name);
  return Result::kSuccess;
}

Result make_launch(Process& process, Context& context, const LaunchRequest& request,
                   const void* handle, Operation* operation) {
  std::shared_ptr<Function> function;
  if (const Result result = resolve_function(process, context, handle, &function)) return result;
  const std::uint64_t threads =
      std::uint64_t{request.block[0]} * request.block[1] * request.block[2];
  if (threads == 0 || threads > kMaxThreads || std::ranges::count(request.grid, 0U) != 0) {
    return Result::kInvalidValue;
  }
  Launch launch;
  launch.grid = request.grid;
  launch.block = request.block;
  launch.module = function->module;
  launch.memory = &process.memory;
  if (const Result result = pack_arguments(function->entry, request, &launch.arguments)) {
    return result;
  }
  operation->type = NodeType::kKernel;
  operation->instant = function->instant;
  operation->kernel = true;
  operation->run = [launch = std::move(launch), body = function->body] { return body(launch); };
  return Result::kSuccess;
}

}  // namespace gcr::softgpu
