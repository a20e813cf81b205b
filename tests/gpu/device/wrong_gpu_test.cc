// A GPU whose kernel computes something else is not used for a migration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "migrate-agent/gpu/device/calls.h"

namespace gcr::device {
namespace {

using testing::HasSubstr;

/// The effect of a kernel launch, with the arguments of digest_kernel.cu.
using Launch = std::function<void(const Chunk*, std::uint32_t, digest::Digest*)>;

/// A GPU whose memory belongs to the test.
class FakeCalls final : public Calls {
 public:
  explicit FakeCalls(Launch launch) : launch_(std::move(launch)) {}

  Status enter() const override { return {}; }
  Result<std::uint64_t> free_bytes() const override { return std::uint64_t{0}; }
  Result<unsigned> processors() const override { return 1U; }
  Result<Handle> create_memory(std::uint64_t, std::optional<std::uint32_t>) const override {
    return none();
  }
  Result<UniqueFd> export_memory(Handle) const override { return none(); }
  Result<Handle> import_memory(int) const override { return none(); }
  void release_memory(Handle) const override {}
  Result<Address> reserve(std::uint64_t) const override { return none(); }
  void free_addresses(Address, std::uint64_t) const override {}
  Status map(Address, std::uint64_t, Handle) const override { return none(); }
  void unmap(Address, std::uint64_t) const override {}
  Status allow_access(Address, std::uint64_t) const override { return none(); }
  Result<Address> allocate(std::uint64_t bytes) const override {
    return reinterpret_cast<Address>(std::malloc(bytes));
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  void free(Address address) const override { std::free(reinterpret_cast<void*>(address)); }
  Result<std::byte*> allocate_host(std::uint64_t bytes) const override {
    return static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  }
  void free_host(std::byte* address) const override { std::free(address); }
  Status page_lock(std::span<std::byte>) const override { return none(); }
  void unlock_pages(std::byte*) const override {}
  Result<Address> address_of(std::byte* host) const override {
    return reinterpret_cast<Address>(host);
  }
  Result<StreamHandle> make_stream() const override { return StreamHandle{nullptr}; }
  void destroy_stream(StreamHandle) const override {}
  Status copy_within(Address, Address, std::uint64_t, StreamHandle) const override {
    return none();
  }
  Status copy_out(std::byte*, Address, std::uint64_t, StreamHandle) const override {
    return none();
  }
  Status copy_in(Address, const std::byte*, std::uint64_t, StreamHandle) const override {
    return none();
  }
  Status copy_in_now(Address, std::span<const std::byte>) const override { return {}; }
  Status fill(Address, std::byte, std::uint64_t, StreamHandle) const override { return none(); }
  Status synchronize(StreamHandle) const override { return {}; }
  Result<Kernel> load_digest_kernel() const override { return Kernel{}; }
  void unload(const Kernel&) const override {}
  Status launch(const Kernel&, unsigned, unsigned, std::span<void*> arguments,
                StreamHandle) const override {
    launch_(*static_cast<const Chunk**>(arguments[0]), *static_cast<std::uint32_t*>(arguments[1]),
            *static_cast<digest::Digest**>(arguments[3]));
    return {};
  }

 private:
  static Error none() { return {Code::kUnsupported, "not needed"}; }

  const Launch launch_;
};

Result<std::unique_ptr<Digester>> digester_with(const Launch& launch) {
  const GpuInfo info{.uuid = *parse_gpu("GPU-7cf529dea4b33bad"), .name = "AMD Instinct"};
  const auto gpu = std::make_shared<Gpu>(info, std::make_unique<FakeCalls>(launch));
  std::array<std::byte, 32> secret{};
  return gpu->digester(digest::DigestKey::expand(secret));
}

/// As the CPU computes it, except for what `corrupt` changes.
Launch launch_with(const std::function<void(const Chunk&, digest::Digest&)>& corrupt) {
  return [corrupt](const Chunk* chunks, std::uint32_t count, digest::Digest* digests) {
    std::array<std::byte, 32> secret{};
    const auto key = digest::DigestKey::expand(secret);
    for (std::uint32_t i = 0; i < count; ++i) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      const auto* bytes = reinterpret_cast<const std::byte*>(chunks[i].address);
      digests[i] = digest::digest_chunk(key, {bytes, chunks[i].length_bytes});
      corrupt(chunks[i], digests[i]);
    }
  };
}

TEST(WrongGpu, GpuWithCorrectDigestsIsUsed) {
  EXPECT_TRUE(digester_with(launch_with([](const Chunk&, digest::Digest&) {})));
}

TEST(WrongGpu, GpuWrongOnlyInTheLastPartIsRefused) {
  const auto made = digester_with(launch_with([](const Chunk& chunk, digest::Digest& digest) {
    if (chunk.length_bytes == 70'001) digest.bytes[15] ^= 1;
  }));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kUnsupported);
  EXPECT_THAT(made.error().message(),
              HasSubstr("GPU-7cf529dea4b33bad (AMD Instinct) cannot be used: "
                        "it gives other digests than the CPU"));
}

TEST(WrongGpu, GpuWhoseKernelDoesNothingIsRefused) {
  EXPECT_FALSE(digester_with([](const Chunk*, std::uint32_t, digest::Digest*) {}));
}

}  // namespace
}  // namespace gcr::device
