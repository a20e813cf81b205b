// The files that a process has by name, and what a host has under these names. CRIU opens the file
// of that name for the restored process, with root's rights: it must be the file that the process
// had at the source, and one that the process could open by itself.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>
#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/linux/procfs/directory.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::process {

using FileFacts = google::protobuf::RepeatedPtrField<proto::FileFact>;

/// Files of up to this size are compared by content, executables and libraries too.
inline constexpr std::int64_t kMaxComparedBytes = 16 << 20;

/// Larger ones only if they are mapped and have no build-id, up to this size.
inline constexpr std::int64_t kMaxMappedBytes = 256 << 20;

/// A process with more names, or longer ones, is refused.
inline constexpr int kMaxNames = 65536;
inline constexpr std::size_t kMaxNameBytes = 4096;

using procfs::FileId;

struct NamedFile {
  proto::FileFact fact;
  FileId id;
  // Of a regular file on a tmpfs; the others have none of it.
  std::string link;                  ///< the kernel's link to the file itself, such as /proc/7/fd/3
  std::set<std::string> gone_names;  ///< by which the process has opened it, and which are gone
  bool shared = false;               ///< mapped shared and writable
};

/// Its descriptors, mappings, program, root and working directory, as far as they have names. A
/// file on a tmpfs that was opened by a name that is gone, and has others in the same directory,
/// counts under one of those: glibc gives a semaphore its name after it has mapped it. Each once.
/// Left out: the driver's files, and what /proc has of the process itself. Digests are cached until
/// the file changes: the next call costs an fstat for each name. `with_content` false: no digests.
/// Nothing that is a device or a FIFO is opened. kNotFound if the process is gone; an Error that
/// names a link of the kernel which cannot be read, as of a path that is too long.
Result<std::vector<NamedFile>> named_files(pid_t pid, bool with_content = true);

/// The files found under the names that a process needs, and its access to them.
using VettedFiles = std::map<FileId, std::uint32_t>;

/// Looks for `files` on this host: "file-missing", "file-differs" (type, owner, group, permissions,
/// device, size, build-id or content), and "file-access" where `who`, the process's own ids, groups
/// and capabilities, may not do with it what the process does.
/// Names in `coming` come with the job: nothing has them yet.
VettedFiles compare_files(const FileFacts& files, const proto::Credentials& who,
                          findings::Findings& findings, const std::set<std::string>& coming = {});

using DumpedMembers = google::protobuf::RepeatedPtrField<proto::DumpedMember>;

/// Before CRIU opens anything: checks that each of `names`, which the images have, was reported by
/// the source's agent, or is among `made`, names that this agent has given to files itself, and
/// that the files of these names here are as reported, and within the rights of the member that has
/// them. For each member what was found. kDataLoss with the reasons if not.
Result<std::vector<VettedFiles>> vet_files(const std::set<std::string>& names,
                                           const DumpedMembers& told,
                                           const std::set<std::string>& made = {});

/// Before anything runs: checks that `pid`, which was restored, has the vetted files and no others.
Status check_restored_files(pid_t pid, const VettedFiles& vetted);

}  // namespace gcr::process
