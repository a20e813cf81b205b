// Modules: what a PTX text declares, and the CPU kernels that stand for its entries.
//
// A module is taken if every `.entry` of it is known to the kernel registry (kernels.h); otherwise
// loading answers CUDA_ERROR_NO_BINARY_FOR_GPU, as a real driver does for code of another GPU.
// Binary images (cubin, fatbin) answer the same. `.global` and `.const` variables become VRAM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "tests/softgpu/kernels.h"

namespace gcr::softgpu {

struct Context;
struct Process;

struct PtxParameter {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
struct PtxEntry {
  std::string name;
  std::vector<PtxParameter> parameters;
  std::size_t parameter_bytes() const {
    return parameters.empty() ? 0 : parameters.back().offset + parameters.back().bytes;
  }
};
struct PtxVariable {
  std::string name;
  std::size_t bytes = 0;
  std::vector<std::uint8_t> initial;  ///< the first bytes; the rest is zero
};
struct PtxText {
  std::vector<PtxEntry> entries;
  std::vector<PtxVariable> variables;
};

/// The declarations in a PTX text; none if it is not one.
std::optional<PtxText> parse_ptx(std::string_view text);

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
  PtxEntry entry;
  KernelBody body = nullptr;
  Module* module = nullptr;
  bool instant = false;  ///< does nothing, so its launch on an idle stream is over at once
  int max_dynamic_shared = 48 * 1024;
};

struct Library;

/// A kernel in a library: in every context a function of its own.
struct Kernel {
  std::string name;
  Library* library = nullptr;
};

struct Library {
  PtxText text;
  std::mutex mutex;
  std::map<Context*, std::shared_ptr<Module>> modules;
  std::map<std::string, std::shared_ptr<Kernel>> kernels;
};

/// Reads an image as cuModuleLoadData takes it.
CUresult read_image(const void* image, PtxText* text);
/// Makes the module in a context: allocates and fills its variables.
CUresult load_module(Process& process, Context& context, const PtxText& text,
                     std::shared_ptr<Module>* module);
/// Frees the variables.
void unload_module(Process& process, Module& module);
/// The library's module in that context, made when first asked for.
CUresult module_of(Process& process, Library& library, Context& context,
                   std::shared_ptr<Module>* module);
/// The function behind a CUfunction or a CUkernel, in the given context.
CUresult resolve_function(Process& process, Context& context, const void* handle,
                          std::shared_ptr<Function>* function);

}  // namespace gcr::softgpu
