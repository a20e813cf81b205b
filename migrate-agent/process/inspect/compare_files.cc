// How the destination compares its own files.
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/access.h"
#include "migrate-agent/process/inspect/files.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

namespace fs = std::filesystem;

const char* type_of(const proto::FileFact& file) {
  switch (file.mode() & S_IFMT) {
    case S_IFREG:
      return "regular file";
    case S_IFDIR:
      return "directory";
    case S_IFIFO:
      return "FIFO";
    case S_IFSOCK:
      return "socket";
    case S_IFCHR:
    case S_IFBLK:
      return "device";
    default:
      return "file of another kind";
  }
}

std::string or_none(const std::string& build_id) { return build_id.empty() ? "none" : build_id; }

/// How the file of a name differs, as the end of a sentence; empty if it does not.
std::string difference(const proto::FileFact& ours, const proto::FileFact& theirs) {
  constexpr std::uint32_t kPermissions = 07777;
  if ((ours.mode() & S_IFMT) != (theirs.mode() & S_IFMT)) {
    return fmt::format("is a {} here and a {} at the source", type_of(ours), type_of(theirs));
  }
  if (ours.uid() != theirs.uid() || ours.gid() != theirs.gid()) {
    return fmt::format("belongs to user {} and group {} here, to {} and {} at the source",
                       ours.uid(), ours.gid(), theirs.uid(), theirs.gid());
  }
  if (ours.mode() != theirs.mode()) {
    return fmt::format("has mode {:o} here and {:o} at the source", ours.mode() & kPermissions,
                       theirs.mode() & kPermissions);
  }
  if (ours.device() != theirs.device()) {
    return fmt::format("is device {:x} here and {:x} at the source", ours.device(),
                       theirs.device());
  }
  if (ours.build_id() != theirs.build_id()) {
    return fmt::format("has build-id {} here and {} at the source", or_none(ours.build_id()),
                       or_none(theirs.build_id()));
  }
  if (ours.size_bytes() != theirs.size_bytes()) {
    return fmt::format("has {} bytes here and {} at the source", ours.size_bytes(),
                       theirs.size_bytes());
  }
  if (!theirs.sha256().empty() && ours.sha256() != theirs.sha256()) {
    return "has other content here than at the source";
  }
  return "";
}

/// A name that can be looked up.
bool is_name(const std::string& path) {
  return path.starts_with('/') && path.size() <= kMaxNameBytes && path.find('\0') == path.npos;
}

void compare_one(const proto::FileFact& theirs, findings::Findings& findings,
                 std::vector<WantedAccess>& found) {
  const UniqueFd file = is_name(theirs.path()) ? procfs::hold(theirs.path()) : UniqueFd();
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    std::string text = theirs.path() + " is used by the process and is not here";
    if (!theirs.shared_with().empty()) {
      text += fmt::format("; it does not come with the process, because process {} has it too",
                          theirs.shared_with());
    }
    findings.add(findings::kFileMissing, text);
    return;
  }
  proto::FileFact ours;
  describe_file(theirs.path(), file, status, {theirs.has_size_bytes(), !theirs.sha256().empty()},
                ours);
  const std::string differs = difference(ours, theirs);
  if (differs.empty()) {
    found.push_back({theirs.path(), theirs.access(), {status.st_dev, status.st_ino}});
  } else {
    findings.add(findings::kFileDiffers, theirs.path() + " " + differs);
  }
}

void check_access(const proto::Credentials& who, const std::vector<WantedAccess>& found,
                  findings::Findings& findings) {
  const auto results = try_access(who, found);
  if (!results) {
    findings.add(findings::kFileAccess, results.error().message());
    return;
  }
  for (std::size_t at = 0; at < found.size(); ++at) {
    if ((*results)[at] == 0) continue;
    findings.add(findings::kFileAccess,
                 fmt::format("user {} could not open {} here as the process has it: {}",
                             who.uids(3), found[at].path, ::strerror((*results)[at])));
  }
}

Status check_names(const std::set<std::string>& names, const DumpedMembers& told,
                   const std::set<std::string>& made) {
  std::set<std::string> known = made;
  std::vector<std::string> own;
  for (const proto::DumpedMember& member : told) {
    for (const proto::FileFact& file : member.named()) known.insert(file.path());
    own.push_back(fmt::format("/proc/{}/", member.pid_in_namespace()));
  }
  const auto is_own = [&own](const std::string& name) {
    return std::ranges::any_of(own, [&](const auto& prefix) { return name.starts_with(prefix); });
  };
  for (const std::string& name : names) {
    if (known.contains(name) || is_own(name)) continue;
    return Error(
        Code::kDataLoss,
        fmt::format("CRIU's images name {}, of which the source's agent does not tell", name));
  }
  return {};
}

}  // namespace

VettedFiles compare_files(const FileFacts& files, const proto::Credentials& who,
                          findings::Findings& findings, const std::set<std::string>& coming) {
  std::vector<WantedAccess> found;
  for (const proto::FileFact& file : files) {
    if (!coming.contains(file.path())) compare_one(file, findings, found);
  }
  if (!found.empty()) check_access(who, found, findings);
  VettedFiles vetted;
  for (const WantedAccess& file : found) vetted[file.file] |= file.access;
  return vetted;
}

Result<std::vector<VettedFiles>> vet_files(const std::set<std::string>& names,
                                           const DumpedMembers& told,
                                           const std::set<std::string>& made) {
  for (const proto::DumpedMember& member : told) {
    if (member.named_size() > kMaxNames) {
      return Error(Code::kProtocol,
                   fmt::format("the source reports {} files of one process", member.named_size()));
    }
    if (member.credentials().empty()) {
      return Error(Code::kProtocol,
                   fmt::format("the source does not report the rights of process {}",
                               member.pid_in_namespace()));
    }
  }
  GCR_TRY(check_names(names, told, made));
  std::vector<VettedFiles> vetted;
  findings::Findings findings(findings::Side::kDestination);
  for (const proto::DumpedMember& member : told) {
    vetted.push_back(compare_files(member.named(), member.credentials(0), findings));
  }
  if (findings.has_blocker()) return Error(Code::kDataLoss, findings::reason_of(findings.list()));
  return vetted;
}

}  // namespace gcr::process
