// A source may request anything: a request that contradicts the announcement is refused before it
// has an effect.
#include <gtest/gtest.h>

#include <array>

#include "migrate-agent/migration/destination/request_checks.h"
#include "migrate-agent/preflight/compare/host_facts.h"
#include "src/base/units.h"

namespace gcr::migration {
namespace {

constexpr std::uint64_t kRoom = 64 * kMiB;

class RequestChecksHostile : public testing::Test {
 protected:
  proto::Buffer buffer(std::uint64_t id, std::uint64_t size_bytes) const {
    proto::Buffer buffer;
    buffer.set_id(id);
    buffer.set_gpu_uuid(to_bytes(gpus_.front().from));
    buffer.set_size_bytes(size_bytes);
    buffer.add_mapped_by()->set_local_id(10 * id);
    return buffer;
  }

  Code check(const std::vector<proto::Buffer>& buffers) const {
    gpu::Job job = job_;
    const auto checked = add_buffers({buffers.begin(), buffers.end()}, gpus_, job, kRoom);
    return checked ? Code::kInvalid : checked.error().code();
  }

  /// Digests of these lengths, in bytes, of buffers 1, 2 and so on.
  Result<mover::VramDigests> digests(
      const std::vector<std::pair<std::uint64_t, std::size_t>>& of) const {
    proto::RestoreRequest request;
    for (const auto& [id, bytes] : of) {
      request.add_digests()->set_buffer_id(id);
      request.mutable_digests()->rbegin()->set_digests(std::string(bytes, 'd'));
    }
    return check_digests(request.digests(), job_);
  }

  const std::vector<device::GpuPair> gpus_ = {{Uuid::random(), Uuid::random()}};
  /// Buffer 1 of one chunk, and buffer 2 of three.
  gpu::Job job_ = [] {
    gpu::Job job;
    (void)job.follow(std::vector<gpu::Listed>{{gpu::kRoot,
                                               {{.local_id = 10, .size_bytes = kChunkBytes},
                                                {.local_id = 20, .size_bytes = 3 * kChunkBytes}}}});
    return job;
  }();
};

TEST_F(RequestChecksHostile, ValidBuffersAreAccepted) {
  const proto::Buffer one = buffer(3, kRoom);
  const auto checked = add_buffers({&one, &one + 1}, gpus_, job_, kRoom);
  ASSERT_TRUE(checked);
  EXPECT_EQ(job_.find({gpu::kRoot, 30}), gpu::AllocationId{3});
  ASSERT_EQ(checked->size(), 1U);
  EXPECT_EQ(checked->front().gpu, gpus_.front().to);
}

TEST_F(RequestChecksHostile, DuplicateBufferIsRefused) {
  EXPECT_EQ(check({buffer(1, kChunkBytes)}), Code::kProtocol);
  EXPECT_EQ(check({buffer(3, kChunkBytes), buffer(3, kChunkBytes)}), Code::kProtocol);
}

TEST_F(RequestChecksHostile, ImpossibleMappingsAreRefused) {
  proto::Buffer mapped = buffer(3, kChunkBytes);
  mapped.mutable_mapped_by(0)->set_member(1);
  EXPECT_EQ(check({mapped}), Code::kProtocol) << "of another member";
  mapped.mutable_mapped_by(0)->set_member(0);
  mapped.mutable_mapped_by(0)->set_local_id(20);
  EXPECT_EQ(check({mapped}), Code::kProtocol) << "which is buffer 2";
  const Status taken = remap_buffers({&mapped, &mapped + 1}, job_);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), Code::kProtocol) << "of no buffer";
  mapped.clear_mapped_by();
  EXPECT_EQ(check({mapped}), Code::kProtocol) << "without a mapping";
  mapped.set_id(2);
  EXPECT_FALSE(remap_buffers({&mapped, &mapped + 1}, job_));
  mapped.add_mapped_by()->set_local_id(21);
  EXPECT_TRUE(remap_buffers({&mapped, &mapped + 1}, job_));
  EXPECT_EQ(job_.find({gpu::kRoot, 21}), gpu::AllocationId{2});
}

TEST_F(RequestChecksHostile, NumberOfMembersIsLimited) {
  constexpr int kMost = gpu::kMaxMembers;
  for (const int members : {1, 2, kMost}) EXPECT_TRUE(check_members(members)) << members;
  for (const int members : {0, kMost + 1}) {
    const Status refused = check_members(members);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kProtocol);
  }
}

TEST_F(RequestChecksHostile, ImpossibleSizesAreRefused) {
  EXPECT_EQ(check({buffer(3, 0)}), Code::kProtocol);
  EXPECT_EQ(check({buffer(3, kChunkBytes + 1)}), Code::kProtocol);
  EXPECT_EQ(check({buffer(3, kRoom), buffer(4, kChunkBytes)}), Code::kResourceExhausted);
  const std::uint64_t most = ~std::uint64_t{0} / kChunkBytes * kChunkBytes;
  EXPECT_EQ(check({buffer(3, kChunkBytes), buffer(4, most)}), Code::kResourceExhausted);
}

TEST_F(RequestChecksHostile, UnmappedGpuIsRefused) {
  proto::Buffer elsewhere = buffer(3, kChunkBytes);
  elsewhere.set_gpu_uuid(to_bytes(gpus_.front().to));
  EXPECT_EQ(check({elsewhere}), Code::kProtocol);
  elsewhere.clear_gpu_uuid();
  EXPECT_EQ(check({elsewhere}), Code::kProtocol);
}

TEST_F(RequestChecksHostile, TooManyBuffersAreRefused) {
  const std::vector<proto::Buffer> many(kMaxBuffers - 1, buffer(3, kChunkBytes));
  EXPECT_EQ(check(many), Code::kProtocol);
}

TEST_F(RequestChecksHostile, UnknownBuffersCannotBeRemoved) {
  for (const std::vector<std::uint64_t>& ids : {std::vector<std::uint64_t>{9}, {1, 1}}) {
    gpu::Job job = job_;
    const Status checked = remove_buffers({ids.begin(), ids.end()}, job);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code(), Code::kProtocol);
  }
  const std::vector<std::uint64_t> both{2, 1};
  EXPECT_TRUE(remove_buffers({both.begin(), both.end()}, job_));
  EXPECT_TRUE(job_.allocations().empty());
}

TEST_F(RequestChecksHostile, EveryChunkNeedsOneDigest) {
  const auto good = digests({{2, 48}, {1, 16}});
  ASSERT_TRUE(good) << good.error().message();
  EXPECT_EQ(good->at({2}).size(), 3U);
  const std::vector<std::pair<std::uint64_t, std::size_t>> bad[] = {
      {},
      {{1, 16}},
      {{1, 16}, {2, 47}},
      {{1, 16}, {2, 49}},
      {{1, 16}, {2, 64}},
      {{1, 0}, {2, 48}},
      {{1, 16}, {2, 48}, {2, 48}},
      {{1, 16}, {2, 48}, {3, 16}},
  };
  for (const auto& of : bad) {
    const auto checked = digests(of);
    ASSERT_FALSE(checked) << testing::PrintToString(of);
    EXPECT_EQ(checked.error().code(), Code::kProtocol);
  }
}

TEST_F(RequestChecksHostile, KeyOfWrongLengthIsRefused) {
  EXPECT_TRUE(check_digest_key(std::string(32, 'k')));
  EXPECT_FALSE(check_digest_key(std::string(31, 'k')));
  EXPECT_FALSE(check_digest_key(std::string(33, 'k')));
}

TEST_F(RequestChecksHostile, TooManyFilesAreRefused) {
  proto::RestoreRequest request;
  const std::string digest = images::ImageDigest{}.to_bytes();
  for (unsigned i = 0; i <= images::kMaxFiles; ++i) request.add_files()->set_digest(digest);
  EXPECT_FALSE(check_files(request.files()));
  request.mutable_files()->RemoveLast();
  EXPECT_TRUE(check_files(request.files()));
  request.mutable_files(0)->set_digest("short");
  EXPECT_FALSE(check_files(request.files()));
}

}  // namespace
}  // namespace gcr::migration
