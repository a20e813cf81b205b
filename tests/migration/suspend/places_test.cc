// The GPUs on which a suspended job resumes.
#include "migrate-agent/migration/suspend/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "migrate-agent/preflight/compare/host_facts.h"
#include "src/base/units.h"

namespace gcr::migration {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kNeeded = 60 * kGiB;

Uuid gpu(std::uint8_t number) {
  Uuid uuid;
  uuid.bytes[15] = number;
  return uuid;
}

Place h200(std::uint8_t number, std::uint64_t free_bytes, bool allowed = true) {
  Place place;
  place.gpu.uuid = gpu(number);
  place.gpu.name = "H200";
  place.gpu.total_bytes = 141 * kGiB;
  place.allowed = allowed;
  place.free_bytes = free_bytes;
  return place;
}

/// The job was suspended on this host.
Result<std::vector<device::GpuPair>> choose(const std::vector<Place>& host,
                                            const std::vector<device::GpuPair>& ordered) {
  std::vector<mover::MappableGpu> from;
  for (const Place& place : host) {
    from.push_back(
        {.uuid = place.gpu.uuid, .name = place.gpu.name, .total_bytes = place.gpu.total_bytes});
  }
  return choose_places(std::move(from), host, {{gpu(1), kNeeded}}, ordered);
}

/// The GPU of `host` on which the content of GPU 1 is restored. `ordered`: the requested GPU; 0:
/// none is requested.
Result<Uuid> place_of_first(const std::vector<Place>& host, std::uint8_t ordered = 0) {
  std::vector<device::GpuPair> order;
  if (ordered != 0) order.push_back({gpu(1), gpu(ordered)});
  GCR_ASSIGN(const auto pairs, choose(host, order));
  EXPECT_EQ(pairs.size(), host.size());
  for (const device::GpuPair& pair : pairs) {
    if (pair.from == gpu(1)) return pair.to;
  }
  return Error(Code::kNotFound, "no pair");
}

TEST(Places, OriginalGpuIsUsedIfItHasRoom) {
  const auto place = place_of_first({h200(1, 70 * kGiB), h200(2, 140 * kGiB)});
  ASSERT_TRUE(place) << place.error().message();
  EXPECT_EQ(*place, gpu(1));
}

TEST(Places, AnotherGpuIsUsedIfTheOriginalIsFull) {
  const auto place = place_of_first({h200(1, 0), h200(2, 10 * kGiB), h200(3, 70 * kGiB)});
  ASSERT_TRUE(place) << place.error().message();
  EXPECT_EQ(*place, gpu(3));
}

TEST(Places, ContextNeedsRoomToo) {
  EXPECT_TRUE(place_of_first({h200(1, kNeeded + preflight::kContextReserveBytes)}));
  const auto refused = place_of_first({h200(1, kNeeded + preflight::kContextReserveBytes - 1)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("60 GiB for buffers"));
}

TEST(Places, RequestIsFollowedOrRefusedWithSizes) {
  const std::vector<Place> host{h200(1, 140 * kGiB), h200(2, 70 * kGiB), h200(3, kGiB)};
  const auto place = place_of_first(host, 2);
  ASSERT_TRUE(place) << place.error().message();
  EXPECT_EQ(*place, gpu(2));
  const auto refused = place_of_first(host, 3);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("1 GiB of VRAM free"));
}

TEST(Places, GpuForbiddenToTheAgentIsNotUsed) {
  const auto refused = place_of_first({h200(1, 0), h200(2, 140 * kGiB, false)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
}

TEST(Places, NoTwoGpusShareATarget) {
  const auto pairs = choose({h200(1, 140 * kGiB), h200(2, 140 * kGiB)}, {{gpu(1), gpu(2)}});
  ASSERT_TRUE(pairs) << pairs.error().message();
  ASSERT_EQ(pairs->size(), 2u);
  EXPECT_EQ((*pairs)[1].from, gpu(2));
  EXPECT_EQ((*pairs)[1].to, gpu(1));
}

TEST(Places, JobOfAnotherHostGetsTheSameModel) {
  const std::vector<mover::MappableGpu> from{
      {.uuid = gpu(7), .name = "H200", .total_bytes = 141 * kGiB}};
  const auto pairs =
      choose_places(from, {h200(1, 0), h200(2, 140 * kGiB)}, {{gpu(7), kNeeded}}, {});
  ASSERT_TRUE(pairs) << pairs.error().message();
  ASSERT_EQ(pairs->size(), 1u);
  EXPECT_EQ(pairs->front().from, gpu(7));
  EXPECT_EQ(pairs->front().to, gpu(2));
}

}  // namespace
}  // namespace gcr::migration
