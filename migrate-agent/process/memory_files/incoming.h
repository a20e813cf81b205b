// The files in memory that come with a job. Everything that the peer says of them is checked. Each
// is created with the rights of a member that owns it, in directories that are reached without
// following links, and has its content before it has a name. Any thread; blocking.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/process/memory_files/limits.h"
#include "proto/control.pb.h"
#include "proto/journal.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::memory_files {

struct IncomingFile {
  proto::MemoryFile fact;
  /// It is on a tmpfs that both hosts share, under the same names: nothing is sent.
  bool shared = false;
};

/// What has to become of each file here; "memory-file" for each that cannot be made. `boot_id`: of
/// the source's kernel. kProtocol for what no agent would say.
Result<std::vector<IncomingFile>> plan(const FileFacts& files, const std::string& boot_id,
                                       findings::Findings& findings);

/// The names that files will have which are to be made.
std::set<std::string> coming_names(const std::vector<IncomingFile>& files);

/// Adds "memory-file" for each file that none of the members could own here.
void check_owners(const std::vector<IncomingFile>& files,
                  const std::vector<proto::Credentials>& members, findings::Findings& findings);

/// The name of the image with the content of the file at this place.
std::string image_name(std::size_t place);

/// The files of a job that are moving to this host. Move-only. Destroying it leaves those that have
/// names, and nothing of the others.
class Incoming {
 public:
  /// Makes the files that are not shared, without names, with the content from `images`, a
  /// directory; removes images as they are used up. An error says why one cannot be made. This,
  /// and all that is done with names, is done where the calling thread's absolute paths lead: for a
  /// container, call it inside.
  static Result<Incoming> make(std::vector<IncomingFile> files, const UniqueFd& images,
                               const std::vector<proto::Credentials>& members);

  /// What is to be kept on disk before give_names().
  const journal::HeldFiles& held() const { return held_; }

  /// Gives the files their names, and those by which CRIU opens them. kRefused if one is taken.
  Status give_names() const;

  /// All names that give_names() gives.
  std::set<std::string> names() const;

  /// Removes those that CRIU alone needed.
  Status drop_temporary_names() const;

 private:
  struct Made {
    UniqueFd file;
    proto::Credentials owner;
    journal::HeldFile held;
  };
  Status add(const IncomingFile& file, int images, const std::string& image,
             const std::vector<proto::Credentials>& members);

  std::vector<Made> made_;
  journal::HeldFiles held_;
  journal::HeldFiles temporary_;
};

}  // namespace gcr::memory_files
