#include "tests/softgpu/module.h"

#include <algorithm>
#include <cstring>

#include "tests/softgpu/process.h"

namespace gcr::softgpu {
namespace {

constexpr std::uint32_t kElf = 0x464c457f;
constexpr std::uint32_t kFatbin = 0xba55ed50;
constexpr std::uint32_t kFatbinWrapper = 0x466243b1;

}  // namespace

CUresult read_image(const void* image, PtxText* text) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* characters = static_cast<const char*>(image);
  if (::strnlen(characters, 4) == 4) {
    std::uint32_t magic = 0;
    std::memcpy(&magic, image, sizeof(magic));
    if (magic == kElf || magic == kFatbin || magic == kFatbinWrapper) {
      return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
  }
  auto parsed = parse_ptx(characters);
  if (!parsed) return CUDA_ERROR_INVALID_IMAGE;
  for (const PtxEntry& entry : parsed->entries) {
    if (find_kernel(entry.name) == nullptr) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  *text = std::move(*parsed);
  return CUDA_SUCCESS;
}

CUresult load_module(Process& process, Context& context, const PtxText& text,
                     std::shared_ptr<Module>* module) {
  auto fresh = std::make_shared<Module>();
  fresh->context = &context;
  for (const PtxVariable& variable : text.variables) {
    std::uintptr_t address = 0;
    if (const CUresult result =
            process.memory.allocate(context.ordinal, std::max<std::size_t>(variable.bytes, 1),
                                    &context, RangeKind::kDriver, nullptr, &address)) {
      unload_module(process, *fresh);
      return result;
    }
    fresh->globals[variable.name] = {address, variable.bytes};
    std::memcpy(reinterpret_cast<void*>(address), variable.initial.data(),
                std::min(variable.initial.size(), variable.bytes));
  }
  for (const PtxEntry& entry : text.entries) {
    auto function = std::make_shared<Function>();
    function->name = entry.name;
    function->entry = entry;
    function->body = find_kernel(entry.name);
    function->module = fresh.get();
    function->instant = entry.name == "gcr_noop";
    fresh->functions[entry.name] = process.functions.add(function);
  }
  *module = process.modules.add(fresh);
  return CUDA_SUCCESS;
}

void unload_module(Process& process, Module& module) {
  for (const auto& [name, function] : module.functions) process.functions.take(function.get());
  for (const auto& [name, global] : module.globals) {
    process.memory.free(global.address, bit(RangeKind::kDriver));
  }
  module.globals.clear();
}

CUresult module_of(Process& process, Library& library, Context& context,
                   std::shared_ptr<Module>* module) {
  std::lock_guard lock(library.mutex);
  auto& known = library.modules[&context];
  if (!known) {
    if (const CUresult result = load_module(process, context, library.text, &known)) {
      library.modules.erase(&context);
      return result;
    }
  }
  *module = known;
  return CUDA_SUCCESS;
}

CUresult resolve_function(Process& process, Context& context, const void* handle,
                          std::shared_ptr<Function>* function) {
  *function = process.functions.get(handle);
  if (*function) return CUDA_SUCCESS;
  const auto kernel = process.kernels.get(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Module> module;
  if (const CUresult result = module_of(process, *kernel->library, context, &module)) {
    return result;
  }
  *function = module->functions.at(kernel->name);
  return CUDA_SUCCESS;
}

}  // namespace gcr::softgpu
