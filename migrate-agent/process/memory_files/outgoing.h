// The files in memory that a job takes along: regular files on a tmpfs, such as /dev/shm has, which
// a member may write to (mapped shared and writable, or open for writing), which a member that has
// them owns, and which no process outside has open or mapped. What is done with them is done with
// the rights of that member. Any thread; blocking.
//
// CRIU opens a file by the name that the process has opened it by. If that name is gone and the
// file has others, it gets the name again for the time of the dump, with " (deleted)" behind it, as
// the kernel calls it then; in CRIU's images it has its own name.
#pragma once

#include <sys/types.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "migrate-agent/process/memory_files/limits.h"
#include "proto/journal.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::memory_files {

struct Member {
  pid_t pid = 0;
  std::span<const process::NamedFile> named;
};

struct OutgoingFile {
  proto::MemoryFile fact;
  pid_t pid = 0;             ///< a member that has it and owns it
  std::string link;          ///< the kernel's link to it, in /proc of that member
  proto::Credentials owner;  ///< of a thread of that member
};

struct Outgoing {
  std::vector<OutgoingFile> files;
  /// Which files cannot be taken along, though members share memory by them: "shared-memory",
  /// "memory-file".
  findings::Findings findings{findings::Side::kSource};
  /// Names of further files that an outsider has too, and which process that is.
  std::map<std::string, std::string> shared_with;
};

/// `members` are all of the job.
Outgoing find(std::span<const Member> members);

/// Its content, for reading. kNotFound if the member has it no more, or may not read it.
Result<UniqueFd> open(const OutgoingFile& file);

/// What it has in CRIU's images for each name that give_names() made.
using Renamed = std::map<std::string, std::string>;

/// The names that the files need for the dump; to be kept before give_names().
journal::HeldFiles wanted_names(const Outgoing& outgoing, Renamed& renamed);

/// Gives the files these names. kUnavailable if a name is taken.
Status give_names(const Outgoing& outgoing);

}  // namespace gcr::memory_files
