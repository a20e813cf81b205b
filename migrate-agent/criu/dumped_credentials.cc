#include "migrate-agent/criu/dumped_credentials.h"

#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/criu/criu_rpc.pb.h"
#include "migrate-agent/criu/images.h"
#include "migrate-agent/process/credentials.h"

namespace gcr::criu {
namespace {

template <class Words>
Result<std::uint64_t> capabilities(const Words& words) {
  if (words.empty() || words.size() > 2) {
    return Error(Code::kDataLoss, fmt::format("a set of capabilities has {} words", words.size()));
  }
  return words[0] | (words.size() > 1 ? std::uint64_t{words[1]} << 32 : 0);
}

/// The rights that a thread would get. The number of its seccomp filters is the kernel's: CRIU
/// reads them by ptrace.
Result<proto::Credentials> in_image(const wire::ThreadCore& core,
                                    const proto::Credentials& kernel) {
  const wire::Creds& creds = core.creds();
  proto::Credentials thread;
  thread.set_thread(kernel.thread());
  for (const std::uint32_t id : {creds.uid(), creds.euid(), creds.suid(), creds.fsuid()}) {
    thread.add_uids(id);
  }
  for (const std::uint32_t id : {creds.gid(), creds.egid(), creds.sgid(), creds.fsgid()}) {
    thread.add_gids(id);
  }
  *thread.mutable_groups() = creds.groups();
  std::ranges::sort(*thread.mutable_groups());
  GCR_ASSIGN(const std::uint64_t inheritable, capabilities(creds.cap_inh()));
  GCR_ASSIGN(const std::uint64_t permitted, capabilities(creds.cap_prm()));
  GCR_ASSIGN(const std::uint64_t effective, capabilities(creds.cap_eff()));
  GCR_ASSIGN(const std::uint64_t bounding, capabilities(creds.cap_bnd()));
  GCR_ASSIGN(const std::uint64_t ambient, capabilities(creds.cap_amb()));
  thread.set_inheritable(inheritable);
  thread.set_permitted(permitted);
  thread.set_effective(effective);
  thread.set_bounding(bounding);
  thread.set_ambient(ambient);
  thread.set_no_new_privileges(creds.no_new_privs() != 0);
  thread.set_seccomp_mode(core.seccomp_mode());
  thread.set_seccomp_filters(kernel.seccomp_filters());
  return thread;
}

Status check_thread(const proto::Credentials& kernel, const std::string& image) {
  GCR_ASSIGN(const std::string record, images::record_in(image, images::kCoreMagic));
  wire::Core core;
  if (!core.ParseFromString(record) || !core.thread_core().has_creds()) {
    return Error(Code::kDataLoss, "the image does not tell the thread's rights");
  }
  GCR_ASSIGN(const proto::Credentials dumped, in_image(core.thread_core(), kernel));
  GCR_TRY(process::compare_credentials(dumped, "in CRIU's image", kernel, "by the kernel"));
  if (core.thread_core().creds().secbits() == 0) return {};
  return Error(Code::kDataLoss,
               fmt::format("thread {}: securebits are {:#x} in CRIU's image; only 0 can be moved",
                           kernel.thread(), core.thread_core().creds().secbits()));
}

}  // namespace

Result<std::vector<proto::Credentials>> check_dumped_credentials(pid_t pid, const ReadImage& read) {
  GCR_ASSIGN(auto threads, process::read_credentials(pid));
  for (const proto::Credentials& thread : threads) {
    const std::string name = fmt::format("core-{}.img", thread.thread());
    GCR_ASSIGN(const std::string image, read(name));
    const Status checked = check_thread(thread, image);
    if (!checked) return checked.error().while_doing(name);
  }
  return threads;
}

}  // namespace gcr::criu
