// How the objects of device.h work: each holds its GPU by a shared pointer, enters that GPU on the
// calling thread, makes the calls of calls.h, and adds to an error what was being done. So a vendor
// implements calls only. An allocation keeps the descriptor that it was imported or exported with.
// A digester runs its kernel once over known bytes before it is used, and compares the result with
// the CPU's: a GPU that computes other digests is refused.
#include "migrate-agent/gpu/device/device.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "migrate-agent/gpu/device/calls.h"
#include "src/base/units.h"

namespace gcr::device {

Stream::~Stream() {
  if (gpu_->calls().enter()) gpu_->calls().destroy_stream(handle_);
}

Status Stream::copy_within(Address to, Address from, std::uint64_t bytes) {
  GCR_TRY(gpu_->calls().enter());
  return in_context(gpu_->calls().copy_within(to, from, bytes, handle_), "copying within VRAM");
}

Status Stream::copy_out(std::byte* to, Address from, std::uint64_t bytes) {
  GCR_TRY(gpu_->calls().enter());
  return in_context(gpu_->calls().copy_out(to, from, bytes, handle_), "copying out of VRAM");
}

Status Stream::copy_in(Address to, const std::byte* from, std::uint64_t bytes) {
  GCR_TRY(gpu_->calls().enter());
  return in_context(gpu_->calls().copy_in(to, from, bytes, handle_), "copying into VRAM");
}

Status Stream::fill(Address to, std::byte value, std::uint64_t bytes) {
  GCR_TRY(gpu_->calls().enter());
  return in_context(gpu_->calls().fill(to, value, bytes, handle_), "filling VRAM");
}

Status Stream::synchronize() {
  GCR_TRY(gpu_->calls().enter());
  return in_context(gpu_->calls().synchronize(handle_),
                    "a copy between VRAM and host memory failed");
}

Allocation::~Allocation() {
  if (!calls().enter()) return;
  if (mapped_) calls().unmap(address_, size_bytes_);
  if (address_ != 0) calls().free_addresses(address_, size_bytes_);
  if (handle_ != 0) calls().release_memory(handle_);
}

const Calls& Allocation::calls() const { return gpu_->calls(); }

Result<UniqueFd> Allocation::duplicate_descriptor() const {
  UniqueFd copy(::fcntl(descriptor_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return Error::from_errno(errno, "cannot duplicate the descriptor of a buffer");
  return copy;
}

Status Allocation::create(std::optional<std::uint32_t> host_node) {
  auto created = calls().create_memory(size_bytes_, host_node);
  if (!created && host_node) {
    return created.error().while_doing(fmt::format(
        "cannot create {} of host memory on NUMA node {}", format_bytes(size_bytes_), *host_node));
  }
  if (!created) {
    const auto free = calls().free_bytes();
    return created.error().while_doing(
        fmt::format("cannot create {} of VRAM on {} ({} free)", format_bytes(size_bytes_),
                    gpu_name(gpu_->info().uuid), free ? format_bytes(*free) : "unknown"));
  }
  handle_ = *created;
  GCR_ASSIGN(descriptor_, in_context(calls().export_memory(handle_), "cannot export VRAM"));
  return map();
}

Status Allocation::import(UniqueFd descriptor) {
  descriptor_ = std::move(descriptor);
  GCR_ASSIGN(handle_,
             in_context(calls().import_memory(descriptor_.get()),
                        fmt::format("cannot import {} of VRAM", format_bytes(size_bytes_))));
  return map();
}

Status Allocation::map() {
  const std::string doing = fmt::format("cannot map {} of VRAM", format_bytes(size_bytes_));
  GCR_ASSIGN(address_, in_context(calls().reserve(size_bytes_), doing));
  GCR_TRY(in_context(calls().map(address_, size_bytes_, handle_), doing));
  mapped_ = true;
  return in_context(calls().allow_access(address_, size_bytes_), doing);
}

Scratch::~Scratch() {
  if (gpu_->calls().enter()) gpu_->calls().free(address_);
}

HostMemory::~HostMemory() {
  if (!gpu_->calls().enter()) return;
  if (origin_ == Origin::kAllocated) {
    gpu_->calls().free_host(bytes_.data());
  } else {
    gpu_->calls().unlock_pages(bytes_.data());
  }
}

namespace {

// As in digest_kernel.cu.
constexpr unsigned kThreads = 256;
constexpr unsigned kBlocksPerProcessor = 2;  // what its registers allow
constexpr std::size_t kBlockKeyBytes = digest::kBlockKeyWords * sizeof(std::uint32_t);
constexpr std::size_t kSumKeyBytes = digest::kSumKeyWords * sizeof(std::uint64_t);
static_assert(kBlockKeyBytes % 16 == 0, "the kernel reads k[] in pieces of 16 bytes");

}  // namespace

Digester::~Digester() {
  if (kernel_.module != nullptr && calls().enter()) calls().unload(kernel_);
}

const Calls& Digester::calls() const { return gpu_->calls(); }

/// Makes the kernel ready for this GPU.
Status Digester::load_kernel() {
  const std::string doing =
      fmt::format("cannot prepare the digest kernel for {}", gpu_name(gpu_->info().uuid));
  GCR_TRY(calls().enter());
  GCR_ASSIGN(kernel_, in_context(calls().load_digest_kernel(), doing));
  GCR_ASSIGN(const unsigned processors, in_context(calls().processors(), doing));
  max_blocks_ = std::max(processors, 1U) * kBlocksPerProcessor;
  return {};
}

Status Digester::copy_key(const digest::DigestKey& key) {
  const auto to = key_->address();
  const std::string_view doing = "cannot copy the digests' key to the GPU";
  GCR_TRY(in_context(calls().copy_in_now(to, std::as_bytes(key.block_key())), doing));
  return in_context(calls().copy_in_now(to + kBlockKeyBytes, std::as_bytes(key.sum_key())), doing);
}

/// kUnsupported if the kernel computes other digests than the CPU. The lengths cover each path of
/// it. In page-locked memory, because VRAM may be scarce.
Status Digester::verify(const digest::DigestKey& key) const {
  constexpr std::array<std::uint32_t, 4> kLengths = {1, 1025, 4096, 70'001};
  constexpr std::size_t kContentBytes = 70'016;
  constexpr std::size_t kDigestsAt = kContentBytes + kLengths.size() * sizeof(Chunk);
  constexpr std::size_t kBytes = kDigestsAt + kLengths.size() * sizeof(digest::Digest);
  static_assert(kContentBytes % 16 == 0 && kContentBytes >= kLengths.back());
  GCR_ASSIGN(const auto memory, gpu_->pinned(kBytes));
  GCR_ASSIGN(const auto stream, gpu_->stream());
  const std::span<std::byte> bytes = memory->bytes();
  for (std::size_t i = 0; i < kContentBytes; ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + (i >> 8) * 13 + 1);
  }
  auto* const chunks = reinterpret_cast<Chunk*>(&bytes[kContentBytes]);
  for (std::size_t i = 0; i < kLengths.size(); ++i) chunks[i] = {memory->address(), kLengths[i]};
  // NOLINTBEGIN(performance-no-int-to-ptr): the GPU's addresses
  GCR_TRY(enqueue(reinterpret_cast<const Chunk*>(memory->address() + kContentBytes),
                  kLengths.size(),
                  reinterpret_cast<digest::Digest*>(memory->address() + kDigestsAt), *stream));
  // NOLINTEND(performance-no-int-to-ptr)
  GCR_TRY(stream->synchronize());
  const auto* const found = reinterpret_cast<const digest::Digest*>(&bytes[kDigestsAt]);
  for (std::size_t i = 0; i < kLengths.size(); ++i) {
    if (found[i] == digest::digest_chunk(key, bytes.first(kLengths[i]))) continue;
    return Error(Code::kUnsupported,
                 fmt::format("{} ({}) cannot be used: it gives other digests than the CPU, for "
                             "instance of {} bytes",
                             gpu_name(gpu_->info().uuid), gpu_->info().name, kLengths[i]));
  }
  return {};
}

Status Digester::enqueue(const Chunk* chunks, std::size_t count, digest::Digest* digests,
                         Stream& stream) const {
  if (count == 0) return {};
  GCR_TRY(calls().enter());
  Address key = key_->address();
  auto chunk_count = static_cast<std::uint32_t>(count);
  if (chunk_count != count) {
    return Error(Code::kInvalidArgument, fmt::format("cannot digest {} chunks at a time", count));
  }
  std::array<void*, 4> arguments = {&chunks, &chunk_count, &key, &digests};
  return in_context(calls().launch(kernel_, std::min(chunk_count, max_blocks_), kThreads, arguments,
                                   stream.handle()),
                    fmt::format("cannot digest {} chunks", count));
}

Gpu::Gpu(GpuInfo info, std::unique_ptr<const Calls> calls)
    : info_(std::move(info)), calls_(std::move(calls)) {}

Gpu::~Gpu() = default;

Result<std::uint64_t> Gpu::free_bytes() {
  GCR_TRY(calls_->enter());
  return in_context(calls_->free_bytes(), "cannot read free VRAM");
}

Result<std::unique_ptr<Allocation>> Gpu::create(std::uint64_t size_bytes,
                                                std::optional<std::uint32_t> host_node) {
  GCR_TRY(calls_->enter());
  auto made = std::make_unique<Allocation>(shared_from_this(), size_bytes);
  GCR_TRY(made->create(host_node));
  return made;
}

Result<std::unique_ptr<Allocation>> Gpu::import(UniqueFd descriptor, std::uint64_t size_bytes) {
  GCR_TRY(calls_->enter());
  auto made = std::make_unique<Allocation>(shared_from_this(), size_bytes);
  GCR_TRY(made->import(std::move(descriptor)));
  return made;
}

Result<std::unique_ptr<Scratch>> Gpu::scratch(std::uint64_t size_bytes) {
  GCR_TRY(calls_->enter());
  GCR_ASSIGN(const Address address,
             in_context(calls_->allocate(size_bytes),
                        fmt::format("cannot allocate {} of VRAM for the mover",
                                    format_bytes(size_bytes))));
  return std::make_unique<Scratch>(shared_from_this(), address);
}

Result<std::unique_ptr<HostMemory>> Gpu::pinned(std::uint64_t size_bytes) {
  GCR_TRY(calls_->enter());
  const std::string doing =
      fmt::format("cannot allocate {} of page-locked memory", format_bytes(size_bytes));
  GCR_ASSIGN(std::byte* const memory, in_context(calls_->allocate_host(size_bytes), doing));
  return host_memory({memory, size_bytes}, HostMemory::Origin::kAllocated, doing);
}

Result<std::unique_ptr<HostMemory>> Gpu::page_lock(std::span<std::byte> bytes) {
  GCR_TRY(calls_->enter());
  const std::string doing =
      fmt::format("cannot page-lock {} of the landing region", format_bytes(bytes.size()));
  GCR_TRY(in_context(calls_->page_lock(bytes), doing));
  return host_memory(bytes, HostMemory::Origin::kLocked, doing);
}

/// Takes over the page-locked memory `bytes`, also on failure.
Result<std::unique_ptr<HostMemory>> Gpu::host_memory(std::span<std::byte> bytes,
                                                     HostMemory::Origin origin,
                                                     std::string_view doing) {
  const auto address = calls_->address_of(bytes.data());
  auto made =
      std::make_unique<HostMemory>(shared_from_this(), bytes, address ? *address : 0, origin);
  if (!address) return address.error().while_doing(doing);
  return made;
}

Result<std::unique_ptr<Stream>> Gpu::stream() {
  GCR_TRY(calls_->enter());
  GCR_ASSIGN(const auto stream, in_context(calls_->make_stream(), "cannot create a stream"));
  return std::make_unique<Stream>(shared_from_this(), stream);
}

Result<std::unique_ptr<Digester>> Gpu::digester(const digest::DigestKey& key) {
  GCR_ASSIGN(auto memory, scratch(kBlockKeyBytes + kSumKeyBytes));
  auto digester = std::make_unique<Digester>(shared_from_this(), std::move(memory));
  GCR_TRY(digester->load_kernel());
  GCR_TRY(digester->copy_key(key));
  GCR_TRY(digester->verify(key));
  return digester;
}

Result<std::shared_ptr<Gpu>> Gpus::on(const Uuid& uuid) {
  if (const auto found = gpus_.find(uuid); found != gpus_.end()) return found->second;
  const auto info = std::ranges::find(driver_->gpus(), uuid, &GpuInfo::uuid);
  if (info == driver_->gpus().end()) {
    return Error(Code::kNotFound, fmt::format("this host has no {}", gpu_name(uuid)));
  }
  GCR_ASSIGN(auto gpu, driver_->open(*info));
  gpus_.emplace(uuid, gpu);
  return gpu;
}

}  // namespace gcr::device
