// VRAM is given back to processes that cannot import it, and to some with wrong descriptions of it.
#include "migrate-agent/gpu/mover/give.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "tests/gpu/access/fake_access.h"
#include "tests/gpu/mover/mover_fixture.h"

namespace gcr::mover {
namespace {

using gpu::Replacement;

/// Accepts memory of other GPUs only if configured to.
class OwnMemoryAlone : public test::FakeAccess {
 public:
  Status answer_to_attach = Error(Code::kUnsupported, "INVALID_DEVICE");
  std::map<std::uint64_t, Replacement> replacements;

  Status attach(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors) override {
    calls.note("attach");
    if (!descriptors.empty()) return answer_to_attach;
    return {};
  }
  Result<std::vector<Replacement>> replace(std::span<const std::uint64_t> ids) override {
    calls.note("replace");
    std::vector<Replacement> some;
    for (const std::uint64_t id : ids) some.push_back(std::move(replacements.at(id)));
    return some;
  }
};

class Give : public Mover {
 protected:
  static constexpr std::uint64_t kSize = 4 * kMiB;

  /// Of a buffer with the content of `seed`: the process's description, and its own memory.
  device::Allocation& add(std::uint64_t id, unsigned seed) {
    device::Allocation& given = allocate(id, kSize, seed);
    auto made = device_->create(kSize, std::nullopt);
    EXPECT_TRUE(made);
    process_.has.push_back({.local_id = id, .size_bytes = kSize, .gpu = gpu_});
    process_.replacements.emplace(
        id, Replacement{process_.has.back(), descriptor_of(**made), descriptor_of(given)});
    vram_.emplace_back(id, descriptor_of(given));
    return *made_.emplace_back(std::move(*made));
  }
  static UniqueFd descriptor_of(const device::Allocation& allocation) {
    auto descriptor = allocation.duplicate_descriptor();
    EXPECT_TRUE(descriptor);
    return std::move(*descriptor);
  }
  Status give_all() {
    return give(process_, std::move(vram_), driver_, [&] { process_.calls.note("let go"); });
  }
  std::vector<std::string> calls() { return process_.calls.wait_for(); }

  OwnMemoryAlone process_;
  gpu::LocalDescriptors vram_;
  std::vector<std::unique_ptr<device::Allocation>> made_;
};

TEST_F(Give, UnimportableMemoryIsCopied) {
  std::vector<device::Allocation*> made;
  for (unsigned number = 1; number <= 3; ++number) made.push_back(&add(number, number));
  const Status given = give_all();
  ASSERT_TRUE(given) << given.error().message();
  for (unsigned number = 1; number <= 3; ++number) {
    const auto wanted = pattern(kSize, number);
    EXPECT_EQ(std::memcmp(read(*made[number - 1]).data(), wanted.data(), kSize), 0) << number;
  }
  EXPECT_EQ(calls(),
            (std::vector<std::string>{"attach", "let go", "allocations", "replace", "attach"}));
}

TEST_F(Give, ImportedMemoryIsNotCopied) {
  add(1, 1);
  process_.answer_to_attach = {};
  EXPECT_TRUE(give_all());
  EXPECT_EQ(calls(), std::vector<std::string>{"attach"});
}

TEST_F(Give, OtherFailuresDoNotCauseACopy) {
  add(1, 1);
  process_.answer_to_attach = Error(Code::kResourceExhausted, "no memory");
  EXPECT_EQ(give_all().error().code(), Code::kResourceExhausted);
  EXPECT_EQ(calls(), std::vector<std::string>{"attach"});
}

/// It is not attached then: the copy is dropped, and nothing else happens.
class GiveHostile : public Give {
 protected:
  void expect_refused() {
    EXPECT_FALSE(give_all());
    EXPECT_EQ(calls().back(), "replace");
  }
};

TEST_F(GiveHostile, MemorySmallerThanDeclaredIsRefused) {
  add(1, 1);
  process_.has[0].size_bytes = 64 * kMiB;
  process_.replacements.at(1).allocation.size_bytes = 64 * kMiB;
  expect_refused();
}

TEST_F(GiveHostile, DescriptorThatIsNoMemoryIsRefused) {
  add(1, 1);
  process_.replacements.at(1).made.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
  expect_refused();
}

TEST_F(GiveHostile, MissingGpuIsRefused) {
  add(1, 1);
  process_.replacements.at(1).allocation.gpu.bytes[0] ^= 1;
  expect_refused();
}

}  // namespace
}  // namespace gcr::mover
