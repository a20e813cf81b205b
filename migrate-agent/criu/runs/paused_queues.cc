#include "migrate-agent/criu/runs/paused_queues.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/linux/ptrace/tracing.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {
namespace {

/// The process's own: KFD knows a process by the file that it has opened. A name proves nothing.
UniqueFd compute_device_of(const procfs::Process& process) {
  struct stat kernels {};
  if (::stat(procfs::kComputeDevice, &kernels) != 0 || !S_ISCHR(kernels.st_mode)) return {};
  for (const procfs::DescriptorLink& descriptor : procfs::descriptor_links(process.pid())) {
    if (descriptor.link != procfs::kComputeDevice) continue;
    UniqueFd file(
        static_cast<int>(::syscall(SYS_pidfd_getfd, process.pidfd(), descriptor.number, 0)));
    struct stat status {};
    if (file && ::fstat(file.get(), &status) == 0 && S_ISCHR(status.st_mode) &&
        status.st_rdev == kernels.st_rdev) {
      return file;
    }
  }
  return {};
}

/// KFD takes this from the tracer of the process. EINVAL: nothing is stopped.
Status unpause(const UniqueFd& device) {
  KfdRequest request;
  request.op = kKfdUnpause;
  while (::ioctl(device.get(), kKfdCriuOp, &request) != 0) {
    if (errno == EINVAL) return {};
    if (errno != EINTR && errno != EAGAIN) return Error::from_errno(errno, "the driver refuses it");
  }
  return {};
}

}  // namespace

Status let_queues_go_on(const procfs::Process& process) {
  const UniqueFd device = compute_device_of(process);
  if (!device) return {};
  const std::string doing =
      "cannot let the GPU queues of process " + std::to_string(process.pid()) + " go on";
  const Result<int> signal = tracing::stop(process.pid(), 0);
  if (!signal && signal.error().code() == Code::kNotFound) return {};
  const Status done = signal ? unpause(device) : Status(signal.error());
  (void)tracing::detach(process.pid(), signal.value_or(0));
  if (!done) return done.error().while_doing(doing);
  return {};
}

}  // namespace gcr::criu
