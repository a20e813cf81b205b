// A source may change its buffers while its lanes write: data lands in the right place
// nevertheless.
#include <atomic>
#include <thread>

#include "tests/gpu/mover/mover_fixture.h"

namespace gcr::mover {
namespace {

class MoverHostile : public Mover {
 protected:
  static constexpr std::uint64_t kSize = 16 * kMiB;
  static constexpr std::uint64_t kPiece = 4 * kKiB;
  static constexpr unsigned kLanes = 2;

  /// The first part of the chunk at `offset` of buffer 1, in separate memory.
  Status arrive(transport::RegionId region, std::uint64_t offset) {
    const auto first = content_.begin() + static_cast<std::ptrdiff_t>(offset);
    auto bytes = std::make_shared<std::vector<std::byte>>(first, first + kPiece);
    return incoming_->arrived(region, offset, transport::Place(*bytes, [bytes] {}));
  }

  /// Lands a part of each chunk of buffer 1 repeatedly, on several threads, while `change` runs.
  template <class Change>
  void while_lanes_land(Change change) {
    const transport::RegionId region = incoming_->region({1}).id;
    content_ = read(*application_.at({1}));
    std::atomic<unsigned> passes = 0;
    std::atomic<bool> stop = false;
    std::vector<std::jthread> lanes;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      lanes.emplace_back([&] {
        while (!stop) {
          for (std::uint64_t at = 0; at < kSize && !stop; at += kChunkBytes) {
            const Status arrived = arrive(region, at);
            EXPECT_TRUE(arrived) << arrived.error().message();
            std::this_thread::yield();  // where a lane receives
          }
          ++passes;
        }
      });
    }
    while (passes < kLanes) std::this_thread::yield();
    change();
    stop = true;
  }

  std::vector<std::byte> content_;
};

TEST_F(MoverHostile, LanesLandWhileBuffersAreAddedAndRemoved) {
  allocate(1, kSize, 1);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  while_lanes_land([&] {
    for (std::uint64_t id = 4; id < 120; id += 2) {
      ASSERT_TRUE(prepare({{{id}, gpu_, kChunkBytes}, {{id + 1}, gpu_, kChunkBytes}}));
      incoming_->remove({id});
      incoming_->remove({id + 1});
    }
  });
  expect_arrived();
}

TEST_F(MoverHostile, LanesLandDuringSwitchFromPrefillToReload) {
  allocate(1, kSize, 1);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(round());
  {
    const auto free = incoming_->free_bytes(gpu_);
    ASSERT_TRUE(free);
    auto occupied = device_->create(*free / kChunkBytes * kChunkBytes, std::nullopt);
    ASSERT_TRUE(occupied) << occupied.error().message();
    while_lanes_land([&] {
      const Status prepared = prepare({{{2}, gpu_, kChunkBytes}});
      ASSERT_TRUE(prepared) << prepared.error().message();
    });
    EXPECT_EQ(incoming_->mode(), Mode::kReload);
    incoming_->remove({2});
  }
  expect_arrived();
}

}  // namespace
}  // namespace gcr::mover
