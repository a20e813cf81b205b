#include "tests/softgpu/hip/registered.h"

#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "tests/softgpu/hip/code_object.h"

namespace gcr::softgpu::hip {
namespace {

/// clang's wrapper around code that it compiled for GPUs.
struct Wrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const void* code;
  void* unused;
};
constexpr std::uint32_t kWrapperMagic = 0x48495046;

struct Binary {
  const void* code = nullptr;
  std::shared_ptr<Library> library;  ///< once it was needed
};

struct Named {
  Binary* binary = nullptr;
  std::string name;
};

/// Filled before main, and read by every thread.
struct Registry {
  std::mutex mutex;
  std::list<Binary> binaries;
  std::map<const void*, Named> kernels;
  std::map<const void*, Named> variables;
};

Registry& registry() {
  static Registry& registry = *new Registry;
  return registry;
}

/// With the mutex.
Result load(Process& process, Binary& binary) {
  if (binary.library) return Result::kSuccess;
  Image image;
  if (const Result result = read_code(binary.code, &image)) return result;
  binary.library = load_library(process, std::move(image));
  return Result::kSuccess;
}

/// With the mutex: the entry registered under that address, with its library loaded.
Result find(Process& process, const std::map<const void*, Named>& table, const void* address,
            const Named** found) {
  const auto entry = table.find(address);
  if (entry == table.end()) return Result::kNotFound;
  *found = &entry->second;
  return load(process, *entry->second.binary);
}

void add(std::map<const void*, Named>& table, void** binary, const void* address,
         const char* name) {
  std::lock_guard lock(registry().mutex);
  table[address] = {reinterpret_cast<Binary*>(binary), name};
}

}  // namespace

Result find_registered_kernel(Process& process, const void* host_function, const void** kernel) {
  std::lock_guard lock(registry().mutex);
  const Named* named = nullptr;
  if (const Result result = find(process, registry().kernels, host_function, &named)) return result;
  const auto& kernels = named->binary->library->kernels;
  const auto found = kernels.find(named->name);
  if (found == kernels.end()) return Result::kNotFound;
  *kernel = found->second.get();
  return Result::kSuccess;
}

Result find_registered_variable(Process& process, Context& context, const void* host_variable,
                                Global* variable) {
  std::lock_guard lock(registry().mutex);
  const Named* named = nullptr;
  if (const Result result = find(process, registry().variables, host_variable, &named)) {
    return result;
  }
  std::shared_ptr<Module> module;
  if (const Result result = module_of(process, *named->binary->library, context, &module)) {
    return result;
  }
  const auto found = module->globals.find(named->name);
  if (found == module->globals.end()) return Result::kNotFound;
  *variable = found->second;
  return Result::kSuccess;
}

// NOLINTBEGIN(bugprone-reserved-identifier): HIP's names

SOFTHIP_EXPORT void** __hipRegisterFatBinary(const void* data) {
  const auto* wrapper = static_cast<const Wrapper*>(data);
  if (wrapper->magic != kWrapperMagic) return nullptr;
  std::lock_guard lock(registry().mutex);
  registry().binaries.push_back({wrapper->code, nullptr});
  return reinterpret_cast<void**>(&registry().binaries.back());
}

SOFTHIP_EXPORT void __hipRegisterFunction(void** binary, const void* host_function, char*,
                                          const char* name, unsigned, void*, void*, dim3*, dim3*,
                                          int*) {
  add(registry().kernels, binary, host_function, name);
}

SOFTHIP_EXPORT void __hipRegisterVar(void** binary, void* host_variable, char*, const char* name,
                                     int, std::size_t, int, int) {
  add(registry().variables, binary, host_variable, name);
}

/// Allocated at once, unlike entries of the registry.
SOFTHIP_EXPORT void __hipRegisterManagedVar(void*, void** pointer, void* initial, const char*,
                                            std::size_t bytes, unsigned) {
  call_in_context([&](Process& process, Context& context) {
    std::uintptr_t start = 0;
    const Result result = process.memory.allocate_host(bytes, &context, RangeKind::kManaged,
                                                       hipMemAttachGlobal, &start);
    if (!result) *pointer = std::memcpy(pointer_to(start), initial, bytes);
    return result;
  });
}

SOFTHIP_EXPORT void __hipUnregisterFatBinary(void** handle) {
  auto* binary = reinterpret_cast<Binary*>(handle);
  std::shared_ptr<Library> library;
  {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    const auto of_binary = [&](const auto& entry) { return entry.second.binary == binary; };
    std::erase_if(all.kernels, of_binary);
    std::erase_if(all.variables, of_binary);
    library = std::move(binary->library);
    all.binaries.remove_if([&](const Binary& other) { return &other == binary; });
  }
  if (library) {
    run_call([&](Process& process) { return unload_library(process, library.get()); });
  }
}

// NOLINTEND(bugprone-reserved-identifier)

}  // namespace gcr::softgpu::hip
