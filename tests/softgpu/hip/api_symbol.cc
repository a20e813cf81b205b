// Copies to and from variables that programs name by their own addresses. Those in streams go
// through the library's own interface, as HIP 5.2's do.
#include "tests/softgpu/engine/copies.h"
#include "tests/softgpu/hip/registered.h"

namespace gcr::softgpu::hip {
namespace {

/// The address in the variable's memory; an error if it is too small.
hipError_t place_in(const void* symbol, std::size_t bytes, std::size_t offset, void** place) {
  return call_in_context([&](Process& process, Context& context) {
    Global variable;
    if (find_registered_variable(process, context, symbol, &variable)) {
      return hipErrorInvalidSymbol;
    }
    if (offset > variable.bytes || bytes > variable.bytes - offset) return hipErrorInvalidValue;
    *place = pointer_to(variable.address + offset);
    return hipSuccess;
  });
}

hipError_t copy_now(DefaultStream flavour, void* to, const void* from, std::size_t bytes) {
  return call_in_stream(flavour, nullptr,
                        [&](Process& process, const std::shared_ptr<Stream>& stream) {
                          return copy_block(process, *stream, line(to, from, bytes), Side::kEither,
                                            Side::kEither, true);
                        });
}

hipError_t to_symbol(DefaultStream flavour, const void* symbol, const void* from, std::size_t bytes,
                     std::size_t offset, hipMemcpyKind) {
  void* to = nullptr;
  const hipError_t found = place_in(symbol, bytes, offset, &to);
  return found != hipSuccess ? found : copy_now(flavour, to, from, bytes);
}

hipError_t from_symbol(DefaultStream flavour, void* to, const void* symbol, std::size_t bytes,
                       std::size_t offset, hipMemcpyKind) {
  void* from = nullptr;
  const hipError_t found = place_in(symbol, bytes, offset, &from);
  return found != hipSuccess ? found : copy_now(flavour, to, from, bytes);
}

hipError_t to_symbol_async(DefaultStream flavour, const void* symbol, const void* from,
                           std::size_t bytes, std::size_t offset, hipMemcpyKind kind,
                           hipStream_t stream) {
  void* to = nullptr;
  const hipError_t found = place_in(symbol, bytes, offset, &to);
  if (found != hipSuccess) return found;
  return flavour == DefaultStream::kLegacy ? hipMemcpyAsync(to, from, bytes, kind, stream)
                                           : hipMemcpyAsync_spt(to, from, bytes, kind, stream);
}

hipError_t from_symbol_async(DefaultStream flavour, void* to, const void* symbol, std::size_t bytes,
                             std::size_t offset, hipMemcpyKind kind, hipStream_t stream) {
  void* from = nullptr;
  const hipError_t found = place_in(symbol, bytes, offset, &from);
  if (found != hipSuccess) return found;
  return flavour == DefaultStream::kLegacy ? hipMemcpyAsync(to, from, bytes, kind, stream)
                                           : hipMemcpyAsync_spt(to, from, bytes, kind, stream);
}

}  // namespace

SOFTHIP_BOTH(hipMemcpyToSymbol, to_symbol,
             (const void* symbol, const void* from, std::size_t bytes, std::size_t offset,
              hipMemcpyKind kind),
             symbol, from, bytes, offset, kind)
SOFTHIP_BOTH(hipMemcpyFromSymbol, from_symbol,
             (void* to, const void* symbol, std::size_t bytes, std::size_t offset,
              hipMemcpyKind kind),
             to, symbol, bytes, offset, kind)
SOFTHIP_BOTH(hipMemcpyToSymbolAsync, to_symbol_async,
             (const void* symbol, const void* from, std::size_t bytes, std::size_t offset,
              hipMemcpyKind kind, hipStream_t stream),
             symbol, from, bytes, offset, kind, stream)
SOFTHIP_BOTH(hipMemcpyFromSymbolAsync, from_symbol_async,
             (void* to, const void* symbol, std::size_t bytes, std::size_t offset,
              hipMemcpyKind kind, hipStream_t stream),
             to, symbol, bytes, offset, kind, stream)

}  // namespace gcr::softgpu::hip
