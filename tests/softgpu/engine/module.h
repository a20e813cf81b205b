// Modules: the declarations of an image, and the CPU kernels behind its entries. The faces parse
// images: CUDA's are PTX texts, HIP's are code objects.
//
// A module is accepted if every kernel of it is known to the kernel registry (kernels.h); otherwise
// loading returns Result::kNoBinaryForGpu, as a real driver does for code of another GPU. Variables
// become VRAM, or managed memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/softgpu/engine/kernels.h"
#include "tests/softgpu/engine/objects.h"

namespace gcr::softgpu {

struct Process;

struct ImageParameter {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
struct ImageKernel {
  std::string name;
  std::vector<ImageParameter> parameters;
  std::size_t parameter_bytes() const {
    return parameters.empty() ? 0 : parameters.back().offset + parameters.back().bytes;
  }
  /// Adds one after the others; `bytes` 0: it has no size.
  void add_parameter(std::size_t bytes, std::size_t alignment);
};
struct ImageVariable {
  std::string name;
  std::size_t bytes = 0;
  std::vector<std::uint8_t> initial;  ///< the first bytes; the rest is zero
  bool managed = false;
};
struct Image {
  std::vector<ImageKernel> entries;
  std::vector<ImageVariable> variables;

  /// kNoBinaryForGpu if any kernel is unknown.
  Result check() const;
};

struct Global {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
};

struct Function;

struct Module {
  Context* context = nullptr;
  std::map<std::string, std::shared_ptr<Function>> functions;
  std::map<std::string, Global> globals;
};

/// A kernel in a module, and so in a context.
struct Function {
  std::string name;
  ImageKernel entry;
  KernelBody body = nullptr;
  Module* module = nullptr;
  bool instant = false;  ///< does nothing, so its launch on an idle stream is complete at once
  int max_dynamic_shared = 48 * 1024;
};

struct Library;

/// A kernel in a library: a different function in every context.
struct Kernel {
  std::string name;
  Library* library = nullptr;
};

/// An image that belongs to no context: its module is created in each context that needs it.
struct Library {
  Image image;
  std::mutex mutex;
  std::map<Context*, std::shared_ptr<Module>> modules;
  std::map<std::string, std::shared_ptr<Kernel>> kernels;
};

/// Creates the module in a context: allocates and fills its variables.
Result load_module(Process& process, Context& context, const Image& image,
                   std::shared_ptr<Module>* module);
/// Frees the variables.
void unload_module(Process& process, Module& module);
/// The library of an image that check() accepted.
std::shared_ptr<Library> load_library(Process& process, Image image);
Result unload_library(Process& process, const void* handle);
/// The library's module in that context, created on the first request.
Result module_of(Process& process, Library& library, Context& context,
                 std::shared_ptr<Module>* module);
/// The function behind the handle of a function or of a kernel, in the given context.
Result resolve_function(Process& process, Context& context, const void* handle,
                        std::shared_ptr<Function>* function);

inline constexpr unsigned kMaxThreads = 1024;  ///< of a block

/// A launch: a null `each` means that all arguments are in one buffer.
struct LaunchRequest {
  std::array<unsigned, 3> grid{};
  std::array<unsigned, 3> block{};
  void** each = nullptr;  ///< a pointer to each argument
  const void* buffer = nullptr;
  std::size_t buffer_bytes = 0;
};

/// The operation that launches a function or a kernel; arguments are copied.
Result make_launch(Process& process, Context& context, const LaunchRequest& request,
                   const void* handle, Operation* operation);

}  // namespace gcr::softgpu
