// Whether a job is confined at least as tightly as the container that receives it. CRIU restores a
// thread with the capabilities, filters and labels that it had: a job from a looser container would
// break out of a tighter one.
#include <fmt/format.h>

#include "migrate-agent/preflight/compare/comparison.h"
#include "migrate-agent/process/inspect/credentials.h"
#include "migrate-agent/process/inspect/surroundings.h"

namespace gcr::preflight {
namespace {

Error looser(const std::string& what) {
  return Error(Code::kRefused, "the job is confined less than the receiving container: " + what);
}

Error other_label(const char* kind, const std::string& there, const std::string& here) {
  return looser(
      fmt::format("its {} is \"{}\", that of the container is \"{}\"", kind, there, here));
}

}  // namespace

Result<proto::Credentials> rights_of_container(pid_t init) {
  proto::Credentials rights;
  GCR_TRY(process::find_rights(init, [&](const proto::Credentials& first) {
    rights = first;
    return true;
  }));
  return rights;
}

Status check_confinement(const proto::Credentials& thread, const proto::Credentials& container) {
  const std::uint64_t all = thread.bounding() | thread.permitted() | thread.inheritable();
  const std::uint64_t beyond = all & ~container.bounding();
  if (beyond != 0) return looser("it may have " + capability_names(beyond));
  if (container.no_new_privileges() && !thread.no_new_privileges()) {
    return looser("it may gain privileges (no_new_privs is not set)");
  }
  if (thread.seccomp_mode() < container.seccomp_mode() ||
      thread.seccomp_filters() < container.seccomp_filters()) {
    return looser(fmt::format("it has {} seccomp filters, and the container {}",
                              thread.seccomp_filters(), container.seccomp_filters()));
  }
  return {};
}

Status check_labels(const proto::ProcessFacts& process, pid_t init) {
  const std::string profile = process::apparmor_profile(init);
  if (process.apparmor_profile() != profile) {
    return other_label("AppArmor profile", process.apparmor_profile(), profile);
  }
  const std::string context = process::selinux_context(init);
  if (process.selinux_context() != context) {
    return other_label("SELinux context", process.selinux_context(), context);
  }
  return {};
}

}  // namespace gcr::preflight
