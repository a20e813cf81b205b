// A receiver's regions, with the keys under which its devices let senders write.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "transport/rdma/messages.h"
#include "transport/rdma/verbs.h"
#include "transport/region_table.h"

namespace gcr::transport::rdma {

/// Thread-safe.
class Regions {
 public:
  /// Of the devices that may write; complete before the first region is added.
  Domains domains;

  Status add(RegionId region, const DmaBuf& memory);
  /// Returns once no device writes to it and no pin is left.
  Status remove(RegionId region);

  /// The answer to a sender's question on a lane of `domain`.
  Result<Message> key_for(const Message& question, const ibv_pd* domain) const;

  Result<RegionTable::Pin> pin(RegionId region, std::uint64_t offset, std::uint64_t length_bytes) {
    return table_.pin(region, offset, length_bytes);
  }

 private:
  mutable std::mutex mutex_;
  std::map<RegionId, std::vector<MemoryRegion>> registered_;  ///< guarded by mutex_
  RegionTable table_;
};

}  // namespace gcr::transport::rdma
