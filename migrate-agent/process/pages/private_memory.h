// Which memory of a dumped job need not go through CRIU, whose dump and restore use one thread:
// what is private and anonymous, and belongs to one process alone.
#pragma once

#include <sys/types.h>

#include <map>
#include <utility>

#include "migrate-agent/process/pages/mappings.h"

namespace gcr::process {

/// Looks at the processes of one tree, each once. One thread at a time.
class PrivateMemory {
 public:
  /// `known`: what is known of some of them, if they are stopped now.
  explicit PrivateMemory(pid_t root, std::map<pid_t, KnownMemory> known = {})
      : root_(root), known_(std::move(known)) {}

  /// Ascending. Without mappings that a process has where its parent or a child has one too: these
  /// may still be one memory that a fork has shared, which CRIU restores as one. None if there is
  /// little, if the kernel may write to memory of the process on its own, or if it is gone.
  AddressRanges of(pid_t pid);

  /// Of a stopped process: writes a byte of each mapping that lies between two of of() and was cut
  /// out of one with them, as it seems, so that it goes through CRIU. The kernel never makes one of
  /// mappings that were first written to when each stood alone (anon_vma_compatible() in
  /// mm/vma.c), as CRIU restores what has no pages. No content changes.
  void keep_joinable(pid_t pid);

  /// All that it has; none if it is gone.
  const MemoryMappings& mappings(pid_t pid);

 private:
  bool is_shared(pid_t pid, const AddressRange& range);

  const pid_t root_;
  std::map<pid_t, pid_t> parents_;  ///< of every process of the tree
  std::map<pid_t, KnownMemory> known_;
  std::map<pid_t, MemoryMappings> mappings_;
};

}  // namespace gcr::process
