// The VRAM of a suspended job on its way back: taken from the keeper of the copy, made anew, filled
// and verified. Methods block; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "migrate-agent/device/device.h"
#include "migrate-agent/job/job.h"
#include "migrate-agent/keeper/keeper.h"
#include "migrate-agent/suspension/kept_copy.pb.h"
#include "src/base/unique_fd.h"

namespace gcr::agent {

class ReturningVram {
 public:
  /// kNotFound: there is no such keeper, or it has no copy.
  static Result<ReturningVram> take_from(const journal::ProcessId& keeper);

  /// Bytes of VRAM by GPU, as they were.
  std::map<Uuid, std::uint64_t> needs() const;
  std::uint64_t total_bytes() const;
  std::size_t count() const { return static_cast<std::size_t>(description_.buffers_size()); }

  /// Makes VRAM for all buffers, where `gpus` says (else where they were). kResourceExhausted says
  /// how much is free.
  Status create(const std::shared_ptr<const device::Driver>& driver,
                const std::vector<device::GpuPair>& gpus);

  /// Copies everything into it.
  Status fill();

  /// Compares the digest of every chunk with what was in VRAM. kDataLoss names the first buffer
  /// that differs.
  Status verify();

  /// Hands it over to a keeper that is not armed yet.
  Status hand_over(keeper::Keeper& keeper) const;

 private:
  struct Buffer {
    std::unique_ptr<device::Allocation> vram;
    const KeptBuffer* kept = nullptr;
  };

  Status check() const;
  Status map(const std::vector<UniqueFd>& files);

  KeptCopy description_;
  std::vector<UniqueMapping> parts_;
  std::map<job::AllocationId, Buffer> buffers_;
};

}  // namespace gcr::agent
