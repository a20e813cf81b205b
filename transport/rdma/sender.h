// The sender's end: spreads writes over lanes, and has one thread that takes what completes.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/base/unique_fd.h"
#include "transport/pacer.h"
#include "transport/rdma/life.h"
#include "transport/rdma/sender_lane.h"

namespace gcr::transport::rdma {

/// A device, as far as a channel uses it.
struct SenderDevice {
  ibv_context* context = nullptr;  ///< librdmacm's
  ProtectionDomain domain;
};

class RdmaSender : public RdmaChannel {
 public:
  struct Lane {
    std::size_t device = 0;  ///< index
    std::unique_ptr<SenderLane> lane;
    Life life;
  };

  /// All lanes are connected, with ids of `events`. `peer` begins every error.
  static Result<std::unique_ptr<RdmaChannel>> start(std::string peer, const RdmaOptions& options,
                                                    EventChannel events,
                                                    std::vector<SenderDevice> devices,
                                                    std::vector<Lane> lanes);
  ~RdmaSender() override;

  Status add_source(std::span<const std::byte> bytes) override;
  Status add_source_dmabuf(const DmaBuf& source) override;
  Status write(RegionId region, std::uint64_t offset, std::span<const std::byte> bytes) override;
  Status flush() override;
  void limit_rate(std::uint64_t bytes_per_second) override;
  void cancel() override;
  unsigned useful_writers() const override;
  Statistics statistics() const override;

 private:
  /// Memory that is registered with every device.
  struct Source {
    std::span<const std::byte> addresses;
    bool readable = true;  ///< by the processor
    std::vector<MemoryRegion> registered;
  };

  RdmaSender() = default;
  template <class Register>
  Status register_source(std::span<const std::byte> addresses, bool readable, Register how);
  std::optional<std::uint32_t> local_key(std::span<const std::byte> bytes,
                                         std::size_t device) const;
  Status write_pieces(Lane& lane, RegionId region, std::uint64_t offset,
                      std::span<const std::byte> bytes);
  std::optional<Error> broken() const;
  Error fail(Error error);

  void run();
  Status turn();
  Status drain(Lane& lane);
  Error cause_of(const Error& error);
  Status take_events();

  std::string peer_;
  std::size_t piece_bytes_ = 0;
  std::chrono::milliseconds peer_timeout_{};
  Pacer pacer_;
  EventChannel events_;
  std::vector<SenderDevice> devices_;
  mutable std::shared_mutex sources_mutex_;
  std::list<Source> sources_;  ///< guarded by sources_mutex_
  std::vector<Lane> lanes_;
  std::atomic<std::size_t> next_ = 0;

  UniqueFd wake_;  ///< readable: stop_ or failed_ was set
  std::atomic<bool> stop_ = false;
  mutable std::mutex mutex_;
  std::optional<Error> error_;  ///< guarded by mutex_
  std::atomic<bool> failed_ = false;
  std::thread thread_;

  std::atomic<std::uint64_t> payload_bytes_ = 0;
  std::atomic<std::uint64_t> wire_bytes_ = 0;
  std::atomic<std::uint64_t> writes_ = 0;
};

}  // namespace gcr::transport::rdma
