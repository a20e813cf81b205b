// The sender's end over RDMA.
//
// Each write goes to the next lane in turn and is cut into pieces. The device reads large pieces in
// place from registered memory, and write() waits until they were read; others are copied. One
// thread drains the completions of all lanes and watches for connection events.
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/base/unique_fd.h"
#include "transport/rdma/sender_lane.h"
#include "transport/transfer.h"

namespace gcr::transport::rdma {

class RdmaSender final : public Channel {
 public:
  explicit RdmaSender(const RdmaOptions& options) : options_(options) {}
  ~RdmaSender() override;

  // Call these in this order, before all other methods (connect.cc).
  Status prepare();
  Status connect_lane(const Address& address, unsigned lane);
  /// Starts the thread. Every error begins with `peer`.
  Status start(std::string peer);

  Status add_source(std::span<const std::byte> bytes) override;
  Status write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes) override;
  Status flush() override;
  void limit_rate(std::uint64_t bytes_per_second) override { pacer_.limit(bytes_per_second); }
  void cancel() override;
  unsigned useful_writers() const override { return 2 * static_cast<unsigned>(lanes_.size()); }
  Statistics statistics() const override { return counters_.statistics(); }

 private:
  struct Source {
    std::span<const std::byte> bytes;
    std::vector<MemoryRegion> registered;
  };

  Status find_device(rdma_cm_id* id, const Address& address);
  Status find_route(rdma_cm_id* id);
  Status expect(const rdma_cm_id* id, rdma_cm_event_type wanted);

  std::optional<std::uint32_t> local_key(std::span<const std::byte> bytes,
                                         const ibv_pd* domain) const;
  Status write_pieces(SenderLane& lane, RegionId region, std::uint64_t offset,
                      std::span<const std::byte> bytes, SenderLane::Batch& batch);
  Error fail(Error error);

  void run();
  Status poll_once();
  static Status drain(SenderLane& lane);
  Error cause_of(const Error& error);
  Status handle_events();

  const RdmaOptions options_;
  std::string peer_;
  std::chrono::steady_clock::time_point deadline_;  ///< of the lane that is being connected
  Pacer pacer_;
  EventChannel events_;
  Domains domains_;
  mutable std::shared_mutex sources_mutex_;
  std::list<Source> sources_;                       ///< guarded by sources_mutex_
  std::vector<std::unique_ptr<SenderLane>> lanes_;  ///< fixed once they are connected
  std::atomic<std::size_t> next_ = 0;

  UniqueFd wake_;  ///< stop_ or broken_ was set
  std::atomic<bool> stop_ = false;
  FirstError broken_;
  Counters counters_;
  std::thread thread_;
};

}  // namespace gcr::transport::rdma
