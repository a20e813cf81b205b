// A job: what one migration moves. Its members are processes. Its allocations of VRAM belong to the
// job as a whole: each is sent once and made once, however many members map it. No input or output.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "migrate-agent/gpu/access/gpu_access.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/uuid.h"

namespace gcr::gpu {

/// A member's place in every list of members, in messages and in records too.
struct MemberId {
  std::uint32_t value = 0;
  auto operator<=>(const MemberId&) const = default;
};

/// A job has no more members: a record of the journal, 4 KiB, names all of them.
inline constexpr std::size_t kMaxMembers = 200;

/// The process that was named.
inline constexpr MemberId kRoot{0};

/// The job's own number for an allocation: given when it is first seen, never reused.
struct AllocationId {
  std::uint64_t value = 0;
  auto operator<=>(const AllocationId&) const = default;
};

/// That a member maps an allocation, under a number of its own that migrations do not change.
struct Mapping {
  MemberId member;
  std::uint64_t local_id = 0;
  auto operator<=>(const Mapping&) const = default;
};

struct Allocation {
  AllocationId id;
  Uuid gpu;  ///< that it is on, or for host memory one that reaches it
  std::uint64_t size_bytes = 0;
  std::vector<Mapping> mapped_by;            ///< at least one
  std::optional<std::uint32_t> host_node{};  ///< in host memory, of this NUMA node
};

/// An allocation as messages have it, and back. Nothing is checked: bytes that are no identifier of
/// a GPU become zeros.
proto::Buffer to_message(const Allocation& allocation);
Allocation from_message(const proto::Buffer& message);

/// All that a member maps at one moment.
struct Listed {
  MemberId member;
  std::vector<LocalAllocation> now;
};

/// Owned descriptors of VRAM, by the job's numbers and by a member's own.
using Descriptors = std::vector<std::pair<AllocationId, UniqueFd>>;
using LocalDescriptors = std::vector<std::pair<std::uint64_t, UniqueFd>>;
using MemberDescriptors = std::map<MemberId, LocalDescriptors>;

/// Copyable; one thread at a time.
class Job {
 public:
  Job() = default;  ///< of one member
  explicit Job(std::uint32_t members) : members_(members) {}

  std::uint32_t members() const { return members_; }
  const std::map<AllocationId, Allocation>& allocations() const { return allocations_; }

  /// The allocation that the member knows by this number.
  std::optional<AllocationId> find(const Mapping& mapping) const;

  /// What follow() changed of earlier allocations. Each is in one set at most.
  struct Changes {
    std::set<AllocationId> remapped;  ///< other members map it now, or under other numbers
    std::set<AllocationId> removed;   ///< no member maps it any more
  };

  /// Updates the job to all that these members map now. An allocation whose memory is known already
  /// becomes one more mapping of that; others get an id.
  Changes follow(std::span<const Listed> members);

  /// Adds an allocation that has its id already. False, without effect: the id exists, or its
  /// mappings are as remap() refuses them.
  [[nodiscard]] bool add(Allocation allocation);

  /// Replaces an allocation's mappings. False, without effect: there is no such allocation,
  /// `mapped_by` is empty, or has a member that the job lacks, or a number that the member uses for
  /// another allocation.
  [[nodiscard]] bool remap(AllocationId id, std::vector<Mapping> mapped_by);

  /// False: there is no such allocation.
  [[nodiscard]] bool remove(AllocationId id);

  /// Sorts descriptors of the job's allocations by the members that map them. One that several
  /// members map is duplicated.
  Result<MemberDescriptors> split(Descriptors descriptors) const;

 private:
  bool map(AllocationId id, const std::vector<Mapping>& mapped_by);
  void add(const LocalAllocation& local, const Mapping& mapping, Changes& changes);
  void drop(const Mapping& mapping, Changes& changes);

  std::uint32_t members_ = 1;
  std::uint64_t last_id_ = 0;
  std::map<AllocationId, Allocation> allocations_;
  std::map<Mapping, AllocationId> by_mapping_;
  std::map<std::uint64_t, AllocationId> by_memory_;
};

}  // namespace gcr::gpu
