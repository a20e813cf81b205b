#include "migrate-agent/daemon/main/privileges.h"

#include <cap-ng.h>
#include <fmt/format.h>
#include <sys/prctl.h>

#include <array>
#include <cerrno>

namespace gcr::daemon {
namespace {

constexpr auto kWorkers = std::to_array<KeptCapability>({
    {CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE",
     "make control groups at the top of a hierarchy, which is not writable otherwise"},
    {CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH",
     "compare the files that a process maps or holds open, regardless of their modes"},
    {CAP_KILL, "CAP_KILL", "stop, resume and kill other users' processes"},
    {CAP_SETGID, "CAP_SETGID", "use files with a process's groups, to have no more rights than it"},
    {CAP_SETUID, "CAP_SETUID", "use files as a process's user, to have no more rights than it"},
    {CAP_SYS_PTRACE, "CAP_SYS_PTRACE",
     "read other users' /proc/PID, take the door's descriptor, hold restored threads"},
    {CAP_SYS_ADMIN, "CAP_SYS_ADMIN",
     "enter a process's namespaces, make the PID namespace of a restored one, start CRIU there"},
    {CAP_SYS_CHROOT, "CAP_SYS_CHROOT", "enter a process's mount namespace (setns asks for it)"},
    {CAP_NET_ADMIN, "CAP_NET_ADMIN",
     "take TCP connections out of the repair mode of a dump, move a container's addresses"},
    {CAP_NET_RAW, "CAP_NET_RAW", "tell neighbours where a container's addresses are now"},
    {CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE", "test whether a port below 1024 is free"},
    {CAP_IPC_LOCK, "CAP_IPC_LOCK", "pin the landing region for the GPU and for RDMA"},
    {CAP_CHOWN, "CAP_CHOWN", "give files of a container that arrives to their owners"},
    {CAP_FOWNER, "CAP_FOWNER", "give these files their modes, times and attributes"},
    {CAP_FSETID, "CAP_FSETID", "give these files their setuid and setgid bits"},
    {CAP_SETFCAP, "CAP_SETFCAP", "give these files their capabilities"},
    {CAP_MKNOD, "CAP_MKNOD", "make a container's device nodes, such as null and zero"},
});

}  // namespace

std::span<const KeptCapability> kept_capabilities(Part part) {
  if (part == Part::kWorker) return kWorkers;
  return {};
}

Status drop_privileges(Part part) {
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) {
    return Error::from_errno(errno, "cannot disable core dumps of this process");
  }
  if (capng_get_caps_process() != 0) {
    return Error(Code::kIo, "cannot read this process's capabilities");
  }
  std::array<bool, CAP_LAST_CAP + 1> kept{};
  for (const KeptCapability& capability : kept_capabilities(part)) {
    kept.at(capability.number) = capng_have_capability(CAPNG_PERMITTED, capability.number) == 1;
  }
  capng_clear(CAPNG_SELECT_CAPS);
  for (unsigned number = 0; number < kept.size(); ++number) {
    if (!kept.at(number)) continue;
    capng_update(CAPNG_ADD, static_cast<capng_type_t>(CAPNG_EFFECTIVE | CAPNG_PERMITTED), number);
  }
  if (capng_apply(CAPNG_SELECT_CAPS) != 0) {
    return Error::from_errno(errno, "cannot drop capabilities");
  }
  return {};
}

}  // namespace gcr::daemon
