#include "migrate-agent/gpu/mover/gpu_map.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "src/base/units.h"

namespace gcr::mover {
namespace {

Uuid gpu(std::uint8_t number) {
  Uuid uuid;
  uuid.bytes[15] = number;
  return uuid;
}

MappableGpu h200(std::uint8_t number, bool chosen) {
  return {gpu(number), "H200", 141 * kGiB, chosen};
}

TEST(GpuMap, SameGpuIsPreferred) {
  const auto map = map_gpus({h200(1, true)}, {h200(2, true), h200(1, true)});
  ASSERT_TRUE(map) << map.error().message();
  ASSERT_EQ(map->size(), 1U);
  EXPECT_EQ((*map)[0].to, gpu(1));
}

TEST(GpuMap, EverySourceGpuGetsADistinctCounterpart) {
  const auto map = map_gpus({h200(1, true), h200(2, false)}, {h200(1, false), h200(2, true)});
  ASSERT_TRUE(map) << map.error().message();
  ASSERT_EQ(map->size(), 2U);
  EXPECT_EQ((*map)[0].from, gpu(1));
  EXPECT_EQ((*map)[0].to, gpu(2));
  EXPECT_EQ((*map)[1].from, gpu(2));
  EXPECT_EQ((*map)[1].to, gpu(1));
}

TEST(GpuMap, GpusThatTheProcessCanOpenComeFirstAndGetOnesThatItMayUse) {
  MappableGpu hidden = h200(1, false);
  hidden.hidden = true;
  const auto map = map_gpus({hidden, h200(2, false), h200(3, true)},
                            {h200(2, false), h200(3, false), h200(4, true), h200(5, true)});
  ASSERT_TRUE(map) << map.error().message();
  ASSERT_EQ(map->size(), 3U);
  EXPECT_EQ((*map)[0].from, gpu(3));
  EXPECT_EQ((*map)[0].to, gpu(4));
  EXPECT_EQ((*map)[1].from, gpu(2));
  EXPECT_EQ((*map)[1].to, gpu(5));
  EXPECT_EQ((*map)[2].from, gpu(1));
  EXPECT_EQ((*map)[2].to, gpu(2));
}

TEST(GpuMap, GpuThatTheProcessCannotOpenNeedsNoCounterpart) {
  MappableGpu hidden = h200(1, false);
  hidden.hidden = true;
  const auto map = map_gpus({hidden, h200(2, true)}, {h200(3, true)});
  ASSERT_TRUE(map) << map.error().message();
  ASSERT_EQ(map->size(), 1U);
  EXPECT_EQ((*map)[0].to, gpu(3));
}

TEST(GpuMap, GpuThatTheProcessCanOpenGetsNoneThatItCannotOpen) {
  MappableGpu hidden = h200(4, false);
  hidden.hidden = true;
  const auto map = map_gpus({h200(1, true), h200(2, false)}, {h200(3, true), hidden});
  ASSERT_FALSE(map);
  EXPECT_NE(map.error().message().find("could open 2 GPUs at the source, and can open 1"),
            std::string::npos)
      << map.error().message();
}

TEST(GpuMap, GpuThatTheProcessCannotOpenIsInNoPair) {
  MappableGpu hidden_here = h200(2, false);
  MappableGpu hidden_there = h200(1, false);
  hidden_here.hidden = hidden_there.hidden = true;
  const auto map = map_gpus({h200(1, true), hidden_here}, {hidden_there, h200(2, true)});
  ASSERT_TRUE(map) << map.error().message();
  ASSERT_EQ(map->size(), 1U);
  EXPECT_EQ((*map)[0].from, gpu(1));
  EXPECT_EQ((*map)[0].to, gpu(2));
}

TEST(GpuMap, FittingGpuWithMostFreeVramIsTakenFirst) {
  MappableGpu full = h200(3, true);
  MappableGpu half = h200(4, true);
  MappableGpu empty = h200(5, true);
  full.free_bytes = kGiB;
  half.free_bytes = 70 * kGiB;
  empty.free_bytes = 140 * kGiB;
  const auto map = map_gpus({h200(1, true), h200(2, true)}, {full, half, empty});
  ASSERT_TRUE(map) << map.error().message();
  ASSERT_EQ(map->size(), 2U);
  EXPECT_EQ((*map)[0].to, gpu(5));
  EXPECT_EQ((*map)[1].to, gpu(4));
}

TEST(GpuMap, RequestedPairsComeFirst) {
  const std::vector<MappableGpu> gpus{h200(1, true), h200(2, true), h200(3, true)};
  const auto map = map_gpus(gpus, gpus, {{gpu(1), gpu(2)}});
  ASSERT_TRUE(map) << map.error().message();
  ASSERT_EQ(map->size(), 3U);
  EXPECT_EQ((*map)[0].from, gpu(1));
  EXPECT_EQ((*map)[0].to, gpu(2));
  EXPECT_EQ((*map)[1].to, gpu(1));
  EXPECT_EQ((*map)[2].to, gpu(3));
}

TEST(GpuMap, ImpossibleRequestIsRefusedWithItsReason) {
  const std::vector<MappableGpu> source{h200(1, true), h200(2, true)};
  const std::vector<MappableGpu> destination{h200(1, true), h200(2, true), h200(3, false)};
  const auto reason = [&](const std::vector<device::GpuPair>& ordered) {
    const auto map = map_gpus(source, destination, ordered);
    return map ? "" : map.error().message();
  };
  EXPECT_EQ(reason({{gpu(1), gpu(3)}}),
            fmt::format("GPU-{}=GPU-{} was ordered: the destination's agent does not place "
                        "processes on the second",
                        gpu(1).to_string(), gpu(3).to_string()));
  EXPECT_NE(reason({{gpu(4), gpu(1)}}).find("the source has no such GPU"), std::string::npos);
  EXPECT_NE(reason({{gpu(1), gpu(4)}}).find("the destination has no such GPU"), std::string::npos);
  EXPECT_NE(reason({{gpu(1), gpu(2)}, {gpu(2), gpu(2)}}).find("named twice"), std::string::npos);
}

TEST(GpuMap, DifferentModelIsRefused) {
  MappableGpu other = h200(2, true);
  other.name = "A100";
  const auto map = map_gpus({h200(1, true)}, {other});
  ASSERT_FALSE(map);
  EXPECT_EQ(map.error().code(), Code::kRefused);
  EXPECT_NE(map.error().message().find(gpu(1).to_string()), std::string::npos);
}

TEST(GpuMap, SmallerMemoryIsRefused) {
  MappableGpu smaller = h200(2, true);
  smaller.total_bytes = 80 * kGiB;
  EXPECT_FALSE(map_gpus({h200(1, true)}, {smaller}));
}

TEST(GpuMap, FewerDestinationGpusAreRefused) {
  const auto map = map_gpus({h200(1, true), h200(2, false)}, {h200(3, true)});
  ASSERT_FALSE(map);
  EXPECT_EQ(map.error().code(), Code::kRefused);
}

TEST(GpuMap, UnusedGpusMapToAnyModel) {
  MappableGpu other = h200(4, false);
  other.name = "A100";
  const auto map = map_gpus({h200(1, false), h200(2, true)}, {other, h200(3, true)});
  ASSERT_TRUE(map) << map.error().message();
  EXPECT_EQ((*map)[0].from, gpu(2));
  EXPECT_EQ((*map)[0].to, gpu(3));
  EXPECT_EQ((*map)[1].to, gpu(4));
}

}  // namespace
}  // namespace gcr::mover
