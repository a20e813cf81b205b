// Memory of processes that are to be restored, put in place before their restore: into the CRIU
// that will restore them, while it waits for its first image. CRIU forks the processes, so they
// inherit the memory, and gcr-in-criu.so moves it to where CRIU would map empty memory.
//
// An area in the CRIU process stands for a range of addresses of one process, many times as large
// as what is known of it at first: each mapping of the final dump lies in one area. Only windows
// that are full, or nearly so, are worth it, and only as huge pages: a fork copies a page table
// entry for each page that is in place.
//
// A random token in each mapping proves what was taken over; the rest is copied (memory_filling.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/memory/criu_memory.h"
#include "migrate-agent/criu/memory/memory_filling.h"
#include "src/base/address_ranges.h"
#include "src/base/result.h"

namespace gcr::criu {

class PrefilledMemory {
 public:
  static constexpr std::uint64_t kPageBytes = PrefilledArea::kPageBytes;
  static constexpr std::uint64_t kWindowPages = PrefilledArea::kWindowPages;
  using Pages = PrefilledArea::Pages;

  /// In a CRIU that waits for its first image; `criu` must outlive this object. If its room is
  /// `limited`, only windows without zeros are put in place.
  PrefilledMemory(CriuMemory& criu, bool limited);

  /// Puts pages of a window (1 MiB at `address`) of a memory in place, in place of what was there;
  /// `bytes` are those pages, without gaps. `memory` is a number that the caller has given it.
  /// False if that is not worth it, or there is no room; never false for a window of which anything
  /// is in place. Any thread. Errors of the kernel; then any part may be in place.
  Result<bool> place(std::uint32_t memory, std::uint64_t address, const Pages& pages,
                     std::span<const std::byte> bytes);

  /// Moves all to another CRIU that waits for its first image. On failure nothing is in place.
  Status move_to(CriuMemory& criu);

  /// When all is there, and before CRIU reads its first image: what is in place is what the
  /// processes have, and CRIU knows which mappings are taken over. `owners` has each memory's
  /// process. Here and below those are by PID in their own namespace. Errors as of fill_memory().
  Status hand_over(const std::filesystem::path& directory,
                   const std::map<std::uint32_t, pid_t>& owners);

  /// When all threads are in their last stop: finds which mappings were taken over. Gives what
  /// fill_memory() has to know.
  Result<Elsewhere> find_taken(const std::map<pid_t, pid_t>& processes);

  /// After that: CRIU lets go of all memory, and it belongs to the processes alone.
  Status let_go();

  /// How much of the processes' memory is in mappings that were taken over.
  std::uint64_t taken_bytes() const { return taken_bytes_; }

 private:
  using Token = std::array<std::byte, 16>;

  struct Area : PrefilledArea {
    std::uint32_t memory = 0;
  };
  /// A mapping that the process may take over, with something in place.
  struct Mapping {
    pid_t process;
    AddressRange range;
    std::uint64_t valid_bytes;
    std::uint64_t token_at;
    std::uint64_t token_in_criu;
    Token token;
    Token covered{};  ///< what belongs where the token is
    pid_t taken_by = 0;
  };

  Area* find_area(std::uint32_t memory, std::uint64_t address);
  Area* make_area(std::uint32_t memory, std::uint64_t address);
  Result<AddressRange> reserve(std::uint64_t bytes);
  Status remove(const Area& area, const std::vector<AddressRange>& stale);
  Status mark(const Area& area, pid_t process, const AddressRange& range);
  Status offer(const Area& area, pid_t process, const images::PrivateMappings& mappings);

  CriuMemory* criu_;
  std::mutex mutex_;  ///< guards all below, until the last place() has returned
  bool may_grow_;
  unsigned failures_ = 0;
  std::size_t worth_pages_ = kWindowPages;  ///< a window has them that is worth it
  std::vector<std::unique_ptr<Area>> areas_;
  std::vector<Mapping> mappings_;
  std::vector<launch::HoldMessage> takes_;
  std::map<pid_t, std::vector<AddressRange>> valid_;  ///< in place and true, by process
  std::map<pid_t, std::vector<AddressRange>> kept_;   ///< rseq areas
  std::map<std::uint32_t, pid_t> owners_;
  std::uint64_t taken_bytes_ = 0;
};

}  // namespace gcr::criu
