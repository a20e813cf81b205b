// Memory that the processes to be restored share, put in place before their restore: as memory that
// the waiting CRIU shares with the tasks that it forks. Where CRIU, in a task, makes memory of its
// own for them, gcr-in-criu.so puts this in its place. All shared memory that came separately from
// the CRIU images takes this way, whether its windows were put in place as they landed or come from
// files. What the tasks map is compared with it in the end.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "migrate-agent/criu/memory/criu_memory.h"
#include "src/base/result.h"

namespace gcr::criu {

class PrefilledSharedMemory {
 public:
  using Pages = PrefilledArea::Pages;

  /// In a CRIU that waits for its first image; `criu` must outlive this object.
  explicit PrefilledSharedMemory(CriuMemory& criu) : criu_(&criu) {}

  /// As PrefilledMemory::place(); `window` is an offset in the memory. False if there is no room.
  Result<bool> place(std::uint32_t memory, std::uint64_t window, const Pages& pages,
                     std::span<const std::byte> bytes);

  /// Moves all to another CRIU that waits for its first image. On failure nothing is in place.
  Status move_to(CriuMemory& criu);

  /// When all is there, and before CRIU reads its first image: what is in place is what the
  /// memories are, also from their files in `directory`, and CRIU knows them. `numbers` are those
  /// that the images have for the memories of place(). kDataLoss if an image is damaged or a memory
  /// of place() has no number; errors of the kernel.
  Status hand_over(const std::filesystem::path& directory,
                   const std::map<std::uint32_t, std::uint32_t>& numbers);

  /// When all threads are in their last stop: kDataLoss if no task maps a memory that was handed
  /// over. `tasks` by their PID in their own namespace.
  Status check_taken(const std::map<pid_t, pid_t>& tasks);

  /// How much was in place before hand_over(), and was handed over.
  std::uint64_t taken_bytes() const { return taken_bytes_; }

 private:
  using File = std::pair<std::uint64_t, std::uint64_t>;  ///< device and inode

  PrefilledArea* area_of(std::uint32_t memory);
  Result<PrefilledArea> make_area(std::uint64_t bytes);
  Status complete(const std::filesystem::path& directory, std::uint32_t number,
                  const AddressRanges& had, std::uint64_t size_bytes, PrefilledArea& area);

  CriuMemory* criu_;
  std::mutex mutex_;  ///< guards all below, until the last place() has returned
  bool may_grow_ = true;
  unsigned failures_ = 0;                         ///< to get huge pages
  std::map<std::uint32_t, PrefilledArea> areas_;  ///< by the number of place()
  std::map<std::uint32_t, File> handed_over_;     ///< by the number in the images
  std::uint64_t taken_bytes_ = 0;
};

}  // namespace gcr::criu
