// The digest of digest.h by a kernel of ours.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "migrate-agent/device/cuda/objects.h"
#include "migrate-agent/digest/digest_kernel_ptx.h"

namespace gcr::device::cuda {
namespace {

// Those of digest_kernel.cu.
constexpr char kKernel[] = "gcr_digest_chunks";
constexpr unsigned kThreads = 256;

constexpr unsigned kBlocksPerProcessor = 2;  // what its registers allow

constexpr std::size_t kBlockKeyBytes = digest::kBlockKeyWords * sizeof(std::uint32_t);
constexpr std::size_t kSumKeyBytes = digest::kSumKeyWords * sizeof(std::uint64_t);
static_assert(kBlockKeyBytes % 16 == 0, "the kernel reads k[] in pieces of 16 bytes");

class CudaDigester final : public Digester {
 public:
  CudaDigester(std::shared_ptr<CudaGpu> gpu, std::unique_ptr<Scratch> key)
      : gpu_(std::move(gpu)), key_(std::move(key)) {}
  ~CudaDigester() override;
  CudaDigester(const CudaDigester&) = delete;
  CudaDigester& operator=(const CudaDigester&) = delete;

  Status enqueue(const Chunk* chunks, std::size_t count, digest::Digest* digests,
                 Stream& stream) const override;

  /// Compiles the kernel for this GPU.
  Status load_kernel();
  Status copy_key(const digest::DigestKey& key);

 private:
  const std::shared_ptr<CudaGpu> gpu_;
  const std::unique_ptr<Scratch> key_;  ///< k[], then K[]
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  unsigned max_blocks_ = 0;  ///< as many as the GPU can run at the same time
};

Status CudaDigester::load_kernel() {
  const Library& driver = gpu_->library();
  const std::string doing =
      fmt::format("cannot prepare the digest kernel for GPU-{}", gpu_->info().uuid.to_string());
  GCR_TRY(gpu_->enter());
  GCR_TRY(driver.check(driver.cuModuleLoadData(&module_, digest::kDigestKernelPtx), doing));
  GCR_TRY(driver.check(driver.cuModuleGetFunction(&kernel_, module_, kKernel), doing));
  CUdevice device = 0;
  int processors = 0;
  GCR_TRY(driver.check(driver.cuDeviceGet(&device, gpu_->info().ordinal), doing));
  GCR_TRY(driver.check(
      driver.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
      doing));
  max_blocks_ = static_cast<unsigned>(std::max(processors, 1)) * kBlocksPerProcessor;
  return {};
}

Status CudaDigester::copy_key(const digest::DigestKey& key) {
  const Library& driver = gpu_->library();
  const Address to = key_->address();
  const std::string_view doing = "cannot copy the digests' key to the GPU";
  GCR_TRY(driver.check(driver.cuMemcpyHtoD_v2(to, key.block_key().data(), kBlockKeyBytes), doing));
  return driver.check(
      driver.cuMemcpyHtoD_v2(to + kBlockKeyBytes, key.sum_key().data(), kSumKeyBytes), doing);
}

CudaDigester::~CudaDigester() {
  if (module_ != nullptr && gpu_->enter()) gpu_->library().cuModuleUnload(module_);
}

Status CudaDigester::enqueue(const Chunk* chunks, std::size_t count, digest::Digest* digests,
                             Stream& stream) const {
  if (count == 0) return {};
  GCR_TRY(gpu_->enter());
  CUdeviceptr key = key_->address();
  auto chunk_count = static_cast<std::uint32_t>(count);
  if (chunk_count != count) {
    return Error(Code::kInvalidArgument, fmt::format("cannot digest {} chunks at a time", count));
  }
  const unsigned blocks = std::min(chunk_count, max_blocks_);
  // The driver takes pointers to the arguments and copies them before it returns.
  std::array<void*, 4> arguments = {&chunks, &chunk_count, &key, &digests};
  return gpu_->library().check(
      gpu_->library().cuLaunchKernel(kernel_, blocks, 1, 1, kThreads, 1, 1, 0,
                                     static_cast<CudaStream&>(stream).get(), arguments.data(),
                                     nullptr),
      fmt::format("cannot digest {} chunks", count));
}

}  // namespace

Result<std::unique_ptr<Digester>> CudaGpu::digester(const digest::DigestKey& key) {
  GCR_ASSIGN(auto memory, scratch(kBlockKeyBytes + kSumKeyBytes));
  auto digester = std::make_unique<CudaDigester>(self(), std::move(memory));
  GCR_TRY(digester->load_kernel());
  GCR_TRY(digester->copy_key(key));
  return digester;
}

}  // namespace gcr::device::cuda
