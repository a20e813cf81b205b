#include "migrate-agent/process/inspect/credentials.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/side_by_side.h"

namespace gcr::process {
namespace {

constexpr std::size_t kIds = 4;  ///< real, effective, saved, of the file system

template <class Numbers>
void read_numbers(const std::string& text, Numbers& numbers) {
  std::istringstream in(text);
  for (std::uint32_t number = 0; in >> number;) numbers.Add(number);
}

std::uint32_t read_number(const std::string& text) {
  std::uint32_t number = 0;
  std::istringstream(text) >> number;
  return number;
}

/// One thread's rights by the kernel; without an id if it is gone or a zombie.
Result<proto::Credentials> read_thread(const std::string& task) {
  auto fields = procfs::status_fields(task);
  proto::Credentials thread;
  if (fields.empty() || fields["State"].find_first_of("ZX") != std::string::npos) return thread;
  read_numbers(fields["Uid"], *thread.mutable_uids());
  read_numbers(fields["Gid"], *thread.mutable_gids());
  read_numbers(fields["Groups"], *thread.mutable_groups());
  std::ranges::sort(*thread.mutable_groups());
  if (thread.uids_size() != kIds || thread.gids_size() != kIds || !fields.contains("CapAmb") ||
      !fields.contains("NoNewPrivs") || !fields.contains("Seccomp")) {
    return Error(Code::kUnsupported, "the kernel does not tell the rights of thread " + task);
  }
  thread.set_inheritable(procfs::bits_in(fields, "CapInh"));
  thread.set_permitted(procfs::bits_in(fields, "CapPrm"));
  thread.set_effective(procfs::bits_in(fields, "CapEff"));
  thread.set_bounding(procfs::bits_in(fields, "CapBnd"));
  thread.set_ambient(procfs::bits_in(fields, "CapAmb"));
  thread.set_no_new_privileges(read_number(fields["NoNewPrivs"]) != 0);
  thread.set_seccomp_mode(read_number(fields["Seccomp"]));
  thread.set_seccomp_filters(read_number(fields["Seccomp_filters"]));
  thread.set_thread(procfs::innermost_pid(fields));
  return thread;
}

/// The fields by name, as text.
std::vector<std::pair<std::string_view, std::string>> describe(const proto::Credentials& thread) {
  return {{"uids", fmt::format("{}", fmt::join(thread.uids(), " "))},
          {"gids", fmt::format("{}", fmt::join(thread.gids(), " "))},
          {"groups", fmt::format("[{}]", fmt::join(thread.groups(), " "))},
          {"inheritable capabilities", fmt::format("{:x}", thread.inheritable())},
          {"permitted capabilities", fmt::format("{:x}", thread.permitted())},
          {"effective capabilities", fmt::format("{:x}", thread.effective())},
          {"bounding capabilities", fmt::format("{:x}", thread.bounding())},
          {"ambient capabilities", fmt::format("{:x}", thread.ambient())},
          {"no_new_privs", fmt::format("{:d}", thread.no_new_privileges())},
          {"seccomp modes", fmt::format("{}", thread.seccomp_mode())},
          {"seccomp filters", fmt::format("{}", thread.seccomp_filters())}};
}

/// The rights that a process started here gets, from what the source's agent reported.
proto::Credentials handed_on(proto::Credentials told, const proto::Credentials& own) {
  told.set_bounding(told.bounding() & own.bounding());
  told.set_no_new_privileges(told.no_new_privileges() || own.no_new_privileges());
  told.set_seccomp_mode(std::max(told.seccomp_mode(), own.seccomp_mode()));
  told.set_seccomp_filters(told.seccomp_filters() + own.seccomp_filters());
  std::ranges::sort(*told.mutable_groups());
  return told;
}

Error disagreement(int thread, const std::string& what) {
  return Error(Code::kDataLoss, fmt::format("thread {} {}", thread, what));
}

}  // namespace

Result<std::vector<ThreadRights>> read_credentials(pid_t pid) {
  std::vector<ThreadRights> all;
  for (const pid_t process : procfs::stopped_tree(pid)) {
    for (const pid_t tid : procfs::threads(process)) all.push_back({process, tid, {}});
  }
  GCR_TRY(share_out_brief(all.size(), [&](std::size_t i) -> Status {
    GCR_ASSIGN(all[i].rights, read_thread(fmt::format("{}/task/{}", all[i].pid, all[i].tid)));
    return {};
  }));
  std::erase_if(all, [](const ThreadRights& thread) { return thread.rights.thread() == 0; });
  if (all.empty()) return Error(Code::kNotFound, fmt::format("process {} is gone", pid));
  return all;
}

Result<bool> find_rights(pid_t pid, const std::function<bool(const proto::Credentials&)>& found) {
  std::set<std::vector<std::pair<std::string_view, std::string>>> seen;
  for (const pid_t tid : procfs::threads(pid)) {
    GCR_ASSIGN(const proto::Credentials thread, read_thread(fmt::format("{}/task/{}", pid, tid)));
    if (thread.thread() == 0 || !seen.insert(describe(thread)).second) continue;
    if (found(thread)) return true;
  }
  if (seen.empty()) return Error(Code::kNotFound, fmt::format("process {} is gone", pid));
  return false;
}

Status compare_credentials(const proto::Credentials& left, const std::string& where_left,
                           const proto::Credentials& right, const std::string& where_right) {
  if (left.SerializeAsString() == right.SerializeAsString()) return {};
  const auto ours = describe(left);
  const auto theirs = describe(right);
  for (std::size_t at = 0; at < ours.size(); ++at) {
    const auto& [field, value] = ours[at];
    if (value == theirs[at].second) continue;
    return Error(Code::kDataLoss,
                 fmt::format("thread {}: {} are {} {} and {} {}", left.thread(), field, value,
                             where_left, theirs[at].second, where_right));
  }
  return {};
}

Status check_restored_credentials(
    pid_t init, const google::protobuf::RepeatedPtrField<proto::Credentials>& told, pid_t root) {
  if (told.empty() || told.size() > kMaxThreads) {
    return Error(Code::kProtocol, fmt::format("the source reports the rights of {} threads, not of "
                                              "1 to {}",
                                              told.size(), kMaxThreads));
  }
  GCR_ASSIGN(const proto::Credentials own, read_thread("self"));
  std::map<int, const proto::Credentials*> expected;
  for (const proto::Credentials& thread : told) {
    if (expected.emplace(thread.thread(), &thread).second) continue;
    return disagreement(thread.thread(), "is reported twice by the source");
  }
  GCR_ASSIGN(const auto restored, read_credentials(root == 0 ? init : root));
  for (const ThreadRights& one : restored) {
    if (one.pid == init) continue;
    const proto::Credentials& thread = one.rights;
    const auto found = expected.find(thread.thread());
    if (found == expected.end()) {
      return disagreement(thread.thread(), "was restored and is not reported by the source");
    }
    GCR_TRY(compare_credentials(thread, "as restored", handed_on(*found->second, own),
                                "as the source's agent reports"));
    expected.erase(found);
  }
  if (expected.empty()) return {};
  return disagreement(expected.begin()->first, "is reported by the source and was not restored");
}

}  // namespace gcr::process
