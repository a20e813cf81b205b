// The process maps the given memory if its driver lets it. Otherwise it allocates memory itself, in
// steps of at most kMostReplaced allocations: both are mapped here, the content is copied on the
// GPU, and the given memory is freed before the next step. At the end the process maps all of it.
#include "migrate-agent/gpu/mover/give.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <vector>

#include "src/base/units.h"

namespace gcr::mover {
namespace {

using gpu::GpuAccess;
using gpu::LocalAllocation;
using gpu::Replacement;

/// Of the allocations that are replaced in one step, unless one alone is larger.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

/// How many of `rest`, from the first on, are replaced in one step.
std::size_t step_of(std::span<const LocalAllocation> rest) {
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  while (count < std::min(rest.size(), GpuAccess::kMostReplaced)) {
    bytes += rest[count].size_bytes;
    if (count > 0 && bytes > kMostBytes) break;
    ++count;
  }
  return count;
}

/// The copies on one GPU, and the memory that they need mapped until they are complete.
struct Copies {
  std::unique_ptr<device::Stream> stream;
  std::vector<std::unique_ptr<device::Allocation>> mapped;
};

Status copy(std::vector<Replacement> replaced, device::Gpus& gpus) {
  std::map<Uuid, Copies> copies;
  for (Replacement& one : replaced) {
    const std::uint64_t bytes = one.allocation.size_bytes;
    GCR_ASSIGN(const auto gpu, gpus.on(one.allocation.gpu));
    Copies& on_gpu = copies[one.allocation.gpu];
    if (on_gpu.stream == nullptr) {
      GCR_ASSIGN(on_gpu.stream, gpu->stream());
    }
    GCR_ASSIGN(auto from, gpu->import(std::move(one.given), bytes));
    GCR_ASSIGN(auto to, gpu->import(std::move(one.made), bytes));
    GCR_TRY(on_gpu.stream->copy_within(to->address(), from->address(), bytes));
    on_gpu.mapped.push_back(std::move(from));
    on_gpu.mapped.push_back(std::move(to));
  }
  for (auto& [uuid, on_gpu] : copies) GCR_TRY(on_gpu.stream->synchronize());
  return {};
}

Status replace_all(GpuAccess& access, device::Gpus& gpus) {
  GCR_ASSIGN(const auto allocations, access.allocations());
  std::span<const LocalAllocation> rest = allocations;
  while (!rest.empty()) {
    std::vector<std::uint64_t> ids;
    for (const LocalAllocation& one : rest.first(step_of(rest))) ids.push_back(one.local_id);
    GCR_ASSIGN(auto replaced, access.replace(ids));
    GCR_TRY(copy(std::move(replaced), gpus));
    rest = rest.subspan(ids.size());
  }
  return access.attach({});
}

}  // namespace

Status give(GpuAccess& access, gpu::LocalDescriptors vram,
            const std::shared_ptr<const device::Driver>& driver,
            const std::function<void()>& let_go) {
  Status attached = access.attach(std::move(vram));
  if (attached || attached.error().code() != Code::kUnsupported) return attached;
  let_go();
  device::Gpus gpus(driver);
  const Status replaced = replace_all(access, gpus);
  if (!replaced) {
    return Error(replaced.error().code(), attached.error().message() +
                                              "; and the process cannot use memory of its own: " +
                                              replaced.error().message());
  }
  spdlog::info(
      "the process's driver cannot import memory of this GPU: its VRAM was copied into "
      "memory of its own");
  return {};
}

}  // namespace gcr::mover
