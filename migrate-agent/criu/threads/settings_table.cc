#include "migrate-agent/criu/threads/settings_table.h"

#include <errno.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "migrate-agent/criu/threads/extended_state.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::criu {
namespace {

constexpr std::uint64_t kBytes = ThreadCall::kBytes;
constexpr std::uint64_t kValue = 0x7a1e'0000'0000'0000;  ///< as an argument: the setting's value

// Of Linux 6.3 and 6.4; older headers do without.
constexpr int kSetMdwe = 65;
constexpr int kGetMdwe = 66;
constexpr int kSetMemoryMerge = 67;
constexpr int kGetMemoryMerge = 68;

constexpr int kCacheFlush = 2;  // PR_SPEC_L1D_FLUSH, Linux 5.15
// asm/prctl.h
constexpr int kGetCpuid = 0x1011;
constexpr int kSetCpuid = 0x1012;
constexpr int kGetPermissions = 0x1022;
constexpr int kRequestPermission = 0x1023;

constexpr std::uint64_t kOwnProcess = 1;  ///< IOPRIO_WHO_PROCESS
constexpr std::uint64_t kUsualTimerSlackNs = 50'000;

std::uint64_t io_priority(std::uint64_t value) { return value >> 13 == 0 ? 0 : value; }
std::uint64_t timer_slack(std::uint64_t value) { return value == 0 ? kUsualTimerSlackNs : value; }
/// What a thread cannot control is the host's, and stands for the usual.
template <std::uint64_t kUsual>
std::uint64_t controlled(std::uint64_t value) {
  return (value & PR_SPEC_PRCTL) == 0 ? kUsual : value & ~std::uint64_t{PR_SPEC_PRCTL};
}

/// The permission is asked for by the number of its bit.
std::uint64_t amx(std::uint64_t value) { return (value >> kTileData & 1) != 0 ? kTileData : 0; }

constexpr ThreadCall call(long number, std::uint64_t first, std::uint64_t second = 0,
                          std::uint64_t third = 0) {
  return {number, {first, second, third}};
}
constexpr ThreadCall control(std::uint64_t option, std::uint64_t second = 0,
                             std::uint64_t third = 0) {
  return call(SYS_prctl, option, second, third);
}

std::optional<std::uint64_t> number_in(const std::string& path, int base) {
  const std::string text = procfs::read_text(path);
  if (text.empty()) return std::nullopt;
  return std::strtoull(text.c_str(), nullptr, base);
}

std::optional<std::uint64_t> timer_slack_of(const ListedThread& thread) {
  return number_in(fmt::format("/proc/{}/timerslack_ns", thread.tid), 10);
}
std::optional<std::uint64_t> personality_of(const ListedThread& thread) {
  return number_in(fmt::format("/proc/{}/personality", thread.tid), 16);
}
std::optional<std::uint64_t> io_priority_of(const ListedThread& thread) {
  const long result = ::syscall(SYS_ioprio_get, kOwnProcess, thread.tid);
  if (result < 0) return std::nullopt;
  return static_cast<std::uint64_t>(result);
}

/// Where no thread can choose, none has chosen.
template <int kFeature>
bool can_be_chosen() {
  static const long own = ::prctl(PR_GET_SPECULATION_CTRL, kFeature, 0, 0, 0);
  return own < 0 || (own & PR_SPEC_PRCTL) != 0;
}

/// From the word of a thread's status: of `words`, those of fs/proc/array.c in the kernel, one for
/// each of what it can choose. Other words stand for two values.
std::optional<std::uint64_t> chosen(const std::string& word,
                                    const std::array<std::string_view, 3>& words) {
  constexpr std::uint64_t kValues[] = {PR_SPEC_ENABLE, PR_SPEC_DISABLE, PR_SPEC_FORCE_DISABLE};
  const auto found = std::ranges::find(words, word);
  if (found == words.end()) return std::nullopt;
  return PR_SPEC_PRCTL | kValues[found - words.begin()];
}
std::optional<std::uint64_t> store_bypass_of(const ListedThread& thread) {
  if (!can_be_chosen<PR_SPEC_STORE_BYPASS>()) return PR_SPEC_NOT_AFFECTED;
  return chosen(thread.store_bypass,
                {"thread vulnerable", "thread mitigated", "thread force mitigated"});
}
std::optional<std::uint64_t> indirect_branch_of(const ListedThread& thread) {
  if (!can_be_chosen<PR_SPEC_INDIRECT_BRANCH>()) return PR_SPEC_NOT_AFFECTED;
  return chosen(thread.indirect_branch,
                {"conditional enabled", "conditional disabled", "conditional force disabled"});
}
std::optional<std::uint64_t> cache_flush_of(const ListedThread&) {
  if (!can_be_chosen<kCacheFlush>()) return PR_SPEC_NOT_AFFECTED;
  return std::nullopt;
}
/// Where no thread can be denied it, all may use it.
std::optional<std::uint64_t> cpuid_of(const ListedThread&) {
  static const bool can_be_denied = ::syscall(SYS_arch_prctl, kSetCpuid, 1) == 0 || errno != ENODEV;
  if (can_be_denied) return std::nullopt;
  return 1;
}

constexpr auto kRows = std::to_array<SettingRow>({
    {"timer-slack", false, SettingForm::kResult, control(PR_GET_TIMERSLACK),
     control(PR_SET_TIMERSLACK, kValue), kUsualTimerSlackNs, timer_slack, timer_slack_of},
    {"io-priority", false, SettingForm::kResult, call(SYS_ioprio_get, kOwnProcess),
     call(SYS_ioprio_set, kOwnProcess, 0, kValue), 0, io_priority, io_priority_of},
    {"personality", false, SettingForm::kResult, call(SYS_personality, 0xffffffff),
     call(SYS_personality, kValue), 0, nullptr, personality_of},
    {"io-flusher", false, SettingForm::kResult, control(PR_GET_IO_FLUSHER),
     control(PR_SET_IO_FLUSHER, kValue), 0},
    {"machine-check", false, SettingForm::kResult, control(PR_MCE_KILL_GET),
     control(PR_MCE_KILL, PR_MCE_KILL_SET, kValue), PR_MCE_KILL_DEFAULT},
    {"store-bypass", false, SettingForm::kResult,
     control(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS),
     control(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, kValue), PR_SPEC_ENABLE,
     controlled<PR_SPEC_ENABLE>, store_bypass_of},
    {"indirect-branch", false, SettingForm::kResult,
     control(PR_GET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH),
     control(PR_SET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, kValue), PR_SPEC_ENABLE,
     controlled<PR_SPEC_ENABLE>, indirect_branch_of},
    {"cache-flush", false, SettingForm::kResult, control(PR_GET_SPECULATION_CTRL, kCacheFlush),
     control(PR_SET_SPECULATION_CTRL, kCacheFlush, kValue), PR_SPEC_DISABLE,
     controlled<PR_SPEC_DISABLE>, cache_flush_of},
    {"time-stamp-counter", false, SettingForm::kInt, control(PR_GET_TSC, kBytes),
     control(PR_SET_TSC, kValue), PR_TSC_ENABLE},
    {"parent-death-signal", false, SettingForm::kInt, control(PR_GET_PDEATHSIG, kBytes),
     control(PR_SET_PDEATHSIG, kValue), 0},
    {"numa-policy", false, SettingForm::kPolicy,
     call(SYS_get_mempolicy, kBytes, kBytes + kNodesAt, 8 * kNodeBytes),
     call(SYS_set_mempolicy, kValue, kBytes + kNodesAt, 8 * kNodeBytes), MPOL_DEFAULT},
    {"cpuid", false, SettingForm::kResult, call(SYS_arch_prctl, kGetCpuid),
     call(SYS_arch_prctl, kSetCpuid, kValue), 1, nullptr, cpuid_of},
    {"amx", true, SettingForm::kInt, call(SYS_arch_prctl, kGetPermissions, kBytes),
     call(SYS_arch_prctl, kRequestPermission, kValue), 0, amx, nullptr, "", true},
    {"memory-merge", true, SettingForm::kResult, control(kGetMemoryMerge),
     control(kSetMemoryMerge, kValue), 0},
    {"memory-deny-write-execute", true, SettingForm::kResult, control(kGetMdwe),
     control(kSetMdwe, kValue), 0, nullptr, nullptr, "mdwe", true},
});

}  // namespace

std::span<const SettingRow> settings_table() { return kRows; }

std::size_t bytes_of(SettingForm form) {
  if (form == SettingForm::kResult) return 0;
  return form == SettingForm::kInt ? sizeof(int) : sizeof(CallBytes);
}

std::optional<proto::Setting> setting_of(const SettingRow& row, std::int64_t result,
                                         const CallBytes& bytes) {
  if (result < 0) return std::nullopt;
  int number = 0;
  std::memcpy(&number, bytes.data(), sizeof(number));
  const auto told = row.form == SettingForm::kResult ? static_cast<std::uint64_t>(result)
                                                     : static_cast<std::uint64_t>(number);
  proto::Setting setting;
  setting.set_name(std::string(row.name));
  setting.set_value(row.value == nullptr ? told : row.value(told));
  setting.set_needed(row.needed);
  if (setting.value() == row.usual) return std::nullopt;
  if (row.form == SettingForm::kPolicy) {
    setting.set_nodes(bytes.data() + kNodesAt, kNodeBytes);
  }
  return setting;
}

std::optional<proto::Setting> read_own(const SettingRow& row) {
  CallBytes bytes{};
  const auto address = reinterpret_cast<std::uint64_t>(bytes.data());
  const auto& a = row.get.with_bytes_at(address, bytes.size()).arguments;
  const long result = ::syscall(row.get.number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return setting_of(row, result < 0 ? -errno : result, bytes);
}

Result<std::int64_t> set_row(const SettingRow& row, const proto::Setting& setting,
                             ThreadCalls& thread) {
  ThreadCall call = row.set;
  std::ranges::replace(call.arguments, kValue, setting.value());
  CallBytes bytes{};
  std::memcpy(bytes.data() + kNodesAt, setting.nodes().data(),
              std::min(setting.nodes().size(), kNodeBytes));
  return thread.call(call, bytes);
}

proto::Setting usual(const SettingRow& row) {
  proto::Setting setting;
  setting.set_name(std::string(row.name));
  setting.set_value(row.usual);
  return setting;
}

}  // namespace gcr::criu
