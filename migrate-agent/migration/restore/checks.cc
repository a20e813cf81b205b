#include "migrate-agent/migration/restore/checks.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <vector>

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/users.h"
#include "src/control/control_channel.h"

namespace gcr::migration {
namespace {

bool has_capabilities(const proto::Credentials& thread) {
  return thread.permitted() != 0 || thread.effective() != 0 || thread.inheritable() != 0 ||
         thread.ambient() != 0;
}

/// Checks that the user is still in all groups that the thread had at the checkpoint.
Status check_groups(const proto::Credentials& thread, uid_t user,
                    const std::vector<gid_t>& groups) {
  for (const auto* const held : {&thread.gids(), &thread.groups()}) {
    for (const gid_t gid : *held) {
      if (std::ranges::count(groups, gid) > 0) continue;
      return Error(
          Code::kPermissionDenied,
          fmt::format("a process of the checkpoint is in the group {}, and on this host {} "
                      "is not in that group now: only an operator may load it",
                      describe_group(gid), describe_user(user)));
    }
  }
  return {};
}

}  // namespace

Result<store::Owner> check_owner(const worker::WorkerContext& worker,
                                 const std::string& directory) {
  if (!directory.starts_with('/')) {
    return Error(Code::kInvalidArgument, "the directory of a checkpoint is an absolute path");
  }
  struct stat found {};
  if (::stat(directory.c_str(), &found) != 0) {
    const int error = errno;
    const std::optional<uid_t> asker = worker.channel.peer().uid;
    if (error == EACCES && asker && *asker != 0) {
      return store::Owner{*asker, primary_group(*asker).value_or(*asker)};
    }
    const std::string what =
        fmt::format("cannot open the checkpoints in {}", control::printable(directory));
    if (error != EACCES) return Error::from_errno(error, what);
    return Error(Code::kPermissionDenied,
                 what +
                     ": root has no access to it, as on NFS with root_squash: let its owner order "
                     "this on the agent's host, or let others search the path (chmod o+x)");
  }
  GCR_TRY(worker.permissions.check(found.st_uid));
  return store::Owner{found.st_uid, found.st_gid};
}

Status check_rights(const worker::WorkerContext& worker, const proto::Manifest& manifest) {
  const auto& asker = worker.channel.peer();
  const bool local = asker.uid && *asker.uid != 0;
  const std::vector<gid_t> groups = local ? groups_of(*asker.uid) : std::vector<gid_t>();
  for (const proto::DumpedMember& member : manifest.members()) {
    if (member.credentials().empty()) {
      return Error(Code::kDataLoss, "the checkpoint lacks the credentials of a process");
    }
    for (const proto::Credentials& thread : member.credentials()) {
      for (const std::uint32_t uid : thread.uids()) GCR_TRY(worker.permissions.check(uid));
      if (!local) continue;
      GCR_TRY(check_groups(thread, *asker.uid, groups));
      if (!has_capabilities(thread)) continue;
      return Error(Code::kPermissionDenied,
                   "a process of the checkpoint holds capabilities: only an operator may load it");
    }
  }
  return {};
}

Status check_originals(const proto::Manifest& manifest) {
  GCR_ASSIGN(const std::string boot_id, journal::boot_id());
  if (manifest.job().boot_id() != boot_id) return {};
  for (const journal::ProcessId& original : manifest.originals()) {
    const auto now = procfs::read_stat(original.pid());
    if (!now || now->start_time != original.start_time() || procfs::has_ended(*now)) continue;
    return Error(Code::kRefused,
                 fmt::format("process {}, of which the checkpoint was taken, still runs here: end "
                             "it first, or restore a copy (--copy), which shares its files with it",
                             original.pid()));
  }
  return {};
}

/// The agent connects to itself as operators do: by a name that is in its certificate.
Result<std::string> own_address(const worker::WorkerContext& worker) {
  const worker::Config& config = worker.config;
  X509* const own = SSL_CTX_get0_certificate(worker.data_ssl());
  std::vector<std::string> hosts{config.listen.host, worker.channel.local_host(), "localhost",
                                 "127.0.0.1", config.host};
  if (const auto advertised = control::Endpoint::parse(config.advertise)) {
    hosts.insert(hosts.begin(), advertised->host);
  }
  for (const std::string& host : hosts) {
    if (host.empty() || own == nullptr || !control::check_agent_role(own, host)) continue;
    return control::Endpoint{host, config.listen.port}.to_string();
  }
  return Error(
      Code::kInvalidArgument,
      "the agent cannot connect to itself, as it does to restore a checkpoint: its "
      "certificate has none of its addresses; set `advertise` in agent.toml to a name that "
      "the certificate has");
}

}  // namespace gcr::migration
