#include "migrate-agent/mover/gpu_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "migrate-agent/digest/digest_kernel_ptx.h"

namespace gcr::mover {
namespace {

// Those of digest_kernel.cu.
constexpr char kKernel[] = "gcr_digest_chunks";
constexpr unsigned kThreads = 256;

constexpr unsigned kBlocksPerProcessor = 2;  // what its registers allow

constexpr std::size_t kBlockKeyBytes = digest::kBlockKeyWords * sizeof(std::uint32_t);
constexpr std::size_t kSumKeyBytes = digest::kSumKeyWords * sizeof(std::uint64_t);
static_assert(kBlockKeyBytes % 16 == 0, "the kernel reads k[] in pieces of 16 bytes");

}  // namespace

Result<GpuDigester> GpuDigester::create(std::shared_ptr<GpuContext> context,
                                        const digest::DigestKey& key) {
  GCR_ASSIGN(auto memory, DeviceMemory::create(context, kBlockKeyBytes + kSumKeyBytes));
  GpuDigester digester(std::move(context), std::move(memory));
  GCR_TRY(digester.load_kernel());
  const CudaDriver& driver = digester.context_->driver();
  const CUdeviceptr to = digester.key_.address();
  const std::string_view doing = "cannot copy the digests' key to the GPU";
  GCR_TRY(driver.check(driver.cuMemcpyHtoD_v2(to, key.block_key().data(), kBlockKeyBytes), doing));
  GCR_TRY(driver.check(
      driver.cuMemcpyHtoD_v2(to + kBlockKeyBytes, key.sum_key().data(), kSumKeyBytes), doing));
  return digester;
}

Status GpuDigester::load_kernel() {
  const CudaDriver& driver = context_->driver();
  const std::string doing =
      fmt::format("cannot prepare the digest kernel for GPU-{}", context_->gpu().uuid.to_string());
  GCR_TRY(context_->enter());
  GCR_TRY(driver.check(driver.cuModuleLoadData(&module_, digest::kDigestKernelPtx), doing));
  GCR_TRY(driver.check(driver.cuModuleGetFunction(&kernel_, module_, kKernel), doing));
  CUdevice device = 0;
  int processors = 0;
  GCR_TRY(driver.check(driver.cuDeviceGet(&device, context_->gpu().ordinal), doing));
  GCR_TRY(driver.check(
      driver.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
      doing));
  max_blocks_ = static_cast<unsigned>(std::max(processors, 1)) * kBlocksPerProcessor;
  return {};
}

GpuDigester::GpuDigester(GpuDigester&& other) noexcept
    : context_(std::move(other.context_)),
      key_(std::move(other.key_)),
      module_(std::exchange(other.module_, nullptr)),
      kernel_(other.kernel_),
      max_blocks_(other.max_blocks_) {}

GpuDigester::~GpuDigester() {
  if (module_ != nullptr && context_->enter()) context_->driver().cuModuleUnload(module_);
}

Status GpuDigester::enqueue(const ChunkInVram* chunks, std::size_t count, digest::Digest* digests,
                            CUstream stream) const {
  if (count == 0) return {};
  GCR_TRY(context_->enter());
  CUdeviceptr key = key_.address();
  auto chunk_count = static_cast<std::uint32_t>(count);
  if (chunk_count != count) {
    return Error(Code::kInvalidArgument, fmt::format("cannot digest {} chunks at a time", count));
  }
  const unsigned blocks = std::min(chunk_count, max_blocks_);
  // The driver takes pointers to the arguments and copies them before it returns.
  std::array<void*, 4> arguments = {&chunks, &chunk_count, &key, &digests};
  return context_->driver().check(
      context_->driver().cuLaunchKernel(kernel_, blocks, 1, 1, kThreads, 1, 1, 0, stream,
                                        arguments.data(), nullptr),
      fmt::format("cannot digest {} chunks", count));
}

}  // namespace gcr::mover
