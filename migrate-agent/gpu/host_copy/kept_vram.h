// The copy of a suspended job's VRAM, mapped from the files that its keeper has. Immutable after
// take_from(); any thread.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "migrate-agent/gpu/digest/digest.h"
#include "migrate-agent/gpu/host_copy/kept_copy.pb.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/linux/hostmem/landing_region.h"
#include "src/base/unique_fd.h"

namespace gcr::gpu {

/// Hands a copy over to a keeper, which is not armed yet: first the description, which gets the
/// sizes of the parts, then their files. Buffers refer to `parts` by place.
Status hand_over(KeptCopy description, std::span<const hostmem::LandingRegion* const> parts,
                 keeper::Keeper& keeper);

class KeptVram {
 public:
  /// Every buffer lies in a part, and has a digest for each chunk. kNotFound: there is no such
  /// keeper. kDataLoss: it has no copy.
  static Result<KeptVram> take_from(const journal::ProcessId& keeper);

  const KeptCopy& description() const { return description_; }
  std::uint64_t total_bytes() const;

  /// `kept` is of description().
  std::span<std::byte> content(const KeptBuffer& kept) const;

  /// Of the digests.
  std::array<std::byte, 32> digest_key() const;

  /// Whether this is the digest of what was in VRAM. kDataLoss names the chunk if it is not.
  static Status check_digest(const KeptBuffer& kept, std::size_t chunk, const digest::Digest& now);

 private:
  Status check() const;
  Status map(const std::vector<UniqueFd>& files);

  KeptCopy description_;
  std::vector<UniqueMapping> parts_;
};

}  // namespace gcr::gpu
