#include "migrate-agent/criu/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/keyctl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "migrate-agent/criu/apart.h"
#include "migrate-agent/criu/extended_state.h"
#include "migrate-agent/criu/thread_calls.h"
#include "migrate-agent/procfs/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {
namespace {

constexpr std::uint64_t kBytes = ThreadCall::kBytes;
constexpr std::uint64_t kValue = 0x7a1e'0000'0000'0000;  ///< as an argument: the setting's value

constexpr std::size_t kNodeBytes = 128;  ///< of a mask of NUMA nodes
constexpr std::size_t kNodesAt = 8;      ///< in the bytes of a call
using CallBytes = std::array<std::byte, kNodesAt + kNodeBytes>;

// Of Linux 6.3 and 6.4; older headers do without.
constexpr int kSetMdwe = 65;
constexpr int kGetMdwe = 66;
constexpr int kSetMemoryMerge = 67;
constexpr int kGetMemoryMerge = 68;

constexpr int kCacheFlush = 2;  // PR_SPEC_L1D_FLUSH, Linux 5.15
#ifdef __x86_64__
// asm/prctl.h
constexpr int kGetCpuid = 0x1011;
constexpr int kSetCpuid = 0x1012;
constexpr int kGetPermissions = 0x1022;
constexpr int kRequestPermission = 0x1023;
#endif

constexpr std::uint64_t kOwnProcess = 1;  ///< IOPRIO_WHO_PROCESS
constexpr std::uint64_t kUsualTimerSlackNs = 50'000;

/// Where a call gives the value.
enum class Form : std::uint8_t {
  kResult,  ///< it returns it
  kInt,     ///< it writes an int
  kPolicy,  ///< it writes an int and a mask of NUMA nodes
};

std::uint64_t itself(std::uint64_t value) { return value; }
std::uint64_t io_priority(std::uint64_t value) { return value >> 13 == 0 ? 0 : value; }
std::uint64_t timer_slack(std::uint64_t value) { return value == 0 ? kUsualTimerSlackNs : value; }
/// What a thread cannot control is the host's.
std::uint64_t speculation(std::uint64_t value) {
  return (value & PR_SPEC_PRCTL) == 0 ? PR_SPEC_ENABLE : value & ~std::uint64_t{PR_SPEC_PRCTL};
}

std::uint64_t cache_flush(std::uint64_t value) {
  return (value & PR_SPEC_PRCTL) == 0 ? PR_SPEC_DISABLE : value & ~std::uint64_t{PR_SPEC_PRCTL};
}
/// The permission is asked for by the number of its bit.
[[maybe_unused]] std::uint64_t amx(std::uint64_t value) {
  return (value >> kTileData & 1) != 0 ? kTileData : 0;
}

constexpr ThreadCall control(std::uint64_t option, std::uint64_t second = 0,
                             std::uint64_t third = 0) {
  return {SYS_prctl, {option, second, third}};
}

struct Row {
  std::string_view name;
  bool of_process;
  Form form;
  ThreadCall get;
  ThreadCall set;
  std::uint64_t usual;
  /// From what `get` says to what `set` takes.
  std::uint64_t (*value)(std::uint64_t) = itself;
  std::string_view finding{};  ///< of one that confines a process
  bool needed = false;         ///< a program that has it cannot go on without
};

/// In the order in which they are set: what confines comes last.
constexpr auto kRows = std::to_array<Row>({
    {"timer-slack", false, Form::kResult, control(PR_GET_TIMERSLACK),
     control(PR_SET_TIMERSLACK, kValue), kUsualTimerSlackNs, timer_slack},
    {"io-priority",
     false,
     Form::kResult,
     {SYS_ioprio_get, {kOwnProcess}},
     {SYS_ioprio_set, {kOwnProcess, 0, kValue}},
     0,
     io_priority},
    {"personality",
     false,
     Form::kResult,
     {SYS_personality, {0xffffffff}},
     {SYS_personality, {kValue}},
     0},
    {"io-flusher", false, Form::kResult, control(PR_GET_IO_FLUSHER),
     control(PR_SET_IO_FLUSHER, kValue), 0},
    {"machine-check", false, Form::kResult, control(PR_MCE_KILL_GET),
     control(PR_MCE_KILL, PR_MCE_KILL_SET, kValue), PR_MCE_KILL_DEFAULT},
    {"store-bypass", false, Form::kResult, control(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS),
     control(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, kValue), PR_SPEC_ENABLE, speculation},
    {"indirect-branch", false, Form::kResult,
     control(PR_GET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH),
     control(PR_SET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, kValue), PR_SPEC_ENABLE,
     speculation},
    {"cache-flush", false, Form::kResult, control(PR_GET_SPECULATION_CTRL, kCacheFlush),
     control(PR_SET_SPECULATION_CTRL, kCacheFlush, kValue), PR_SPEC_DISABLE, cache_flush},
    {"time-stamp-counter", false, Form::kInt, control(PR_GET_TSC, kBytes),
     control(PR_SET_TSC, kValue), PR_TSC_ENABLE},
    {"parent-death-signal", false, Form::kInt, control(PR_GET_PDEATHSIG, kBytes),
     control(PR_SET_PDEATHSIG, kValue), 0},
    {"numa-policy",
     false,
     Form::kPolicy,
     {SYS_get_mempolicy, {kBytes, kBytes + kNodesAt, 8 * kNodeBytes}},
     {SYS_set_mempolicy, {kValue, kBytes + kNodesAt, 8 * kNodeBytes}},
     MPOL_DEFAULT},
#ifdef __x86_64__
    {"cpuid",
     false,
     Form::kResult,
     {SYS_arch_prctl, {kGetCpuid}},
     {SYS_arch_prctl, {kSetCpuid, kValue}},
     1},
    {"amx",
     true,
     Form::kInt,
     {SYS_arch_prctl, {kGetPermissions, kBytes}},
     {SYS_arch_prctl, {kRequestPermission, kValue}},
     0,
     amx,
     {},
     true},
#endif
    {"memory-merge", true, Form::kResult, control(kGetMemoryMerge),
     control(kSetMemoryMerge, kValue), 0},
    {"memory-deny-write-execute", true, Form::kResult, control(kGetMdwe), control(kSetMdwe, kValue),
     0, itself, "mdwe", true},
});

// No single call. Of a process:
constexpr std::string_view kLockFuture = "lock-future";
constexpr std::string_view kCoredumpFilter = "coredump-filter";
constexpr std::uint64_t kUsualCoredumpFilter = 0x33;
// Of a thread:
constexpr std::string_view kExtendedState = "extended-state";

using Make = std::function<Result<std::int64_t>(const ThreadCall&, std::span<std::byte>)>;

Make make_in(ThreadCalls& thread) {
  return [&thread](const ThreadCall& call, std::span<std::byte> bytes) {
    return thread.call(call, bytes);
  };
}

Result<std::int64_t> make_here(const ThreadCall& call, std::span<std::byte> bytes) {
  const auto& a =
      call.with_bytes_at(reinterpret_cast<std::uint64_t>(bytes.data()), bytes.size()).arguments;
  const long result = ::syscall(call.number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result < 0 ? -errno : result;
}

/// None if it is the usual, or the kernel does not know it.
Result<std::optional<proto::Setting>> read_row(const Row& row, const Make& make) {
  CallBytes bytes{};
  GCR_ASSIGN(const std::int64_t result, make(row.get, bytes));
  if (result < 0) return std::nullopt;
  int number = 0;
  std::memcpy(&number, bytes.data(), sizeof(number));
  const auto told = row.form == Form::kResult ? static_cast<std::uint64_t>(result)
                                              : static_cast<std::uint64_t>(number);
  proto::Setting setting;
  setting.set_name(std::string(row.name));
  setting.set_value(row.value(told));
  setting.set_needed(row.needed);
  if (setting.value() == row.usual) return std::nullopt;
  if (row.form == Form::kPolicy) {
    setting.set_nodes(bytes.data() + kNodesAt, kNodeBytes);
  }
  return setting;
}

/// What the kernel says to it.
Result<std::int64_t> set_row(const Row& row, const proto::Setting& setting, const Make& make) {
  ThreadCall call = row.set;
  std::ranges::replace(call.arguments, kValue, setting.value());
  CallBytes bytes{};
  std::memcpy(bytes.data() + kNodesAt, setting.nodes().data(),
              std::min(setting.nodes().size(), kNodeBytes));
  return make(call, bytes);
}

proto::Setting usual(const Row& row) {
  proto::Setting setting;
  setting.set_name(std::string(row.name));
  setting.set_value(row.usual);
  return setting;
}

bool is_same(const proto::Setting& left, const proto::Setting& right) {
  return left.value() == right.value() && left.nodes() == right.nodes();
}

std::string filter_path(pid_t pid) { return fmt::format("/proc/{}/coredump_filter", pid); }

std::uint64_t read_filter(pid_t pid) {
  const std::string text = procfs::read_text(filter_path(pid));
  return text.empty() ? kUsualCoredumpFilter : std::stoull(text, nullptr, 16);
}

std::int64_t set_filter(pid_t pid, std::uint64_t value) {
  const UniqueFd file(::open(filter_path(pid).c_str(), O_WRONLY | O_CLOEXEC));
  const std::string text = fmt::format("{:#x}\n", value);
  if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return -errno;
  }
  return 0;
}

std::uint64_t locked_kib(pid_t pid) {
  return std::strtoull(procfs::status_field(std::to_string(pid), "VmLck").c_str(), nullptr, 10);
}

/// The flags of mlockall(2) that are in force for later mappings: seen by making one.
Result<int> read_lock_future(pid_t pid, ThreadCalls& thread) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t before = locked_kib(pid);
  GCR_ASSIGN(
      const std::int64_t address,
      thread.call(
          {SYS_mmap, {0, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, ~0ull, 0}}));
  if (address == -EAGAIN) return MCL_FUTURE;  // no more may be locked
  if (address < 0) return 0;
  const auto at = static_cast<std::uint64_t>(address);
  const bool locked = locked_kib(pid) > before;
  std::array<std::byte, 8> there{};
  if (locked) GCR_TRY(thread.call({SYS_mincore, {at, page, kBytes}}, there));
  GCR_TRY(thread.call({SYS_munmap, {at, page}}));
  if (!locked) return 0;
  return (there[0] & std::byte{1}) != std::byte{0} ? MCL_FUTURE : MCL_FUTURE | MCL_ONFAULT;
}

Result<bool> has_keyring(ThreadCalls& thread) {
  for (const int keyring : {KEY_SPEC_THREAD_KEYRING, KEY_SPEC_PROCESS_KEYRING}) {
    const auto id = static_cast<std::uint64_t>(static_cast<std::int64_t>(keyring));
    GCR_ASSIGN(const auto result, thread.call({SYS_keyctl, {KEYCTL_GET_KEYRING_ID, id, 0}}));
    if (result >= 0) return true;
  }
  return false;
}

/// A thread that does not run, held by the caller.
struct Held {
  std::size_t process;  ///< its place
  pid_t inner;          ///< its id in the process's own PID namespace
  bool first;           ///< that can make calls, of its process
  ThreadCalls calls;
};

bool is_gone(pid_t pid, pid_t tid) {
  const auto stat = procfs::read_stat(fmt::format("{}/task/{}", pid, tid));
  return !stat || procfs::is_exiting(*stat);
}

Result<std::vector<Held>> hold_all(const std::vector<pid_t>& processes) {
  std::vector<Held> held;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    bool first = true;
    std::shared_ptr<const CallSite> site;
    for (const pid_t tid : procfs::threads(processes[i])) {
      if (is_gone(processes[i], tid)) continue;
      if (!site) {
        auto found = CallSite::find(processes[i]);
        if (!found && found.error().code() == Code::kNotFound) break;
        if (!found) return found.error();
        site = *std::move(found);
      }
      const auto pids = procfs::namespace_pids(fmt::format("{}/task/{}", processes[i], tid));
      auto calls = ThreadCalls::stop(site, tid);
      if (!calls && (calls.error().code() == Code::kNotFound || is_gone(processes[i], tid))) {
        continue;
      }
      if (!calls) return calls.error();
      const bool callable = calls->can_call();
      held.push_back({i, pids.empty() ? tid : pids.back(), first && callable, std::move(*calls)});
      first = first && !callable;
    }
  }
  return held;
}

/// While all threads are held, none but the one that works for us can run, whoever continues it.
Status with_all_held(const std::vector<pid_t>& processes, const Standstill& standstill,
                     const std::function<Status(std::vector<Held>&)>& work) {
  const bool in_group = static_cast<bool>(standstill.freeze);
  Status done = run_apart([&]() -> Status {
    if (in_group && !standstill.traceable) GCR_TRY(standstill.thaw());
    auto held = hold_all(processes);
    Status status = held ? Status() : Status(held.error());
    if (held) {
      if (in_group && standstill.traceable) status = standstill.thaw();
      if (status) status = work(*held);
    }
    const Status frozen = in_group ? standstill.freeze() : Status();  // before any is let go
    return status ? frozen : status;
  });
  for (const pid_t pid : processes) {
    if (in_group || procfs::has_ended(pid)) continue;
    const Status stopped = procfs::wait_until_stopped(pid);
    if (done) done = stopped;
  }
  return done;
}

const StateLayout& layout_here() {
  static const StateLayout layout = StateLayout::of_this_processor();
  return layout;
}

/// Before the thread makes any call. Mostly nothing: few processors have more than CRIU carries.
Status read_state(Held& thread, Observed& observed) {
  static const bool exists = layout_here().exceeds_criu();
  if (!exists) return {};
  GCR_ASSIGN(const std::vector<std::byte> image, thread.calls.read_state());
  const ExtendedState state = take_state(image, layout_here());
  if (state.components == 0) return {};
  proto::Setting& setting = *observed.settings.Add();
  setting.set_name(std::string(kExtendedState));
  setting.set_value(state.components);
  setting.set_state(state.bytes.data(), state.bytes.size());
  setting.set_thread(thread.inner);
  setting.set_needed(true);
  return {};
}

/// The kernel makes room for tiles when a thread with the permission uses the first.
Status use_tiles(ThreadCalls& thread) {
  struct Configuration {  // of tiles: the palette, and of each its bytes per row and its rows
    std::uint8_t palette = 1;
    std::array<std::uint8_t, 15> none{};
    std::array<std::uint16_t, 16> row_bytes{64};
    std::array<std::uint8_t, 16> rows{1};
  };
  struct {
    std::array<std::uint8_t, 9> load{0xc4, 0xe2, 0x78, 0x49, 0x05, 2, 0, 0, 0};  // ldtilecfg
    std::array<std::uint8_t, 2> jump{0xeb, sizeof(Configuration)};
    std::array<std::uint8_t, sizeof(Configuration)> configuration =
        std::bit_cast<std::array<std::uint8_t, sizeof(Configuration)>>(Configuration());
    std::array<std::uint8_t, 5> zero{0xc4, 0xe2, 0x7b, 0x49, 0xc0};  // tilezero of the first
  } code;
  static_assert(sizeof(Configuration) == 64 && sizeof(code) == 80);
  return thread.execute(std::as_bytes(std::span(&code, 1)));
}

Status write_state(ThreadCalls& thread, const proto::Setting& setting) {
  if ((setting.value() >> kTileData & 1) != 0) GCR_TRY(use_tiles(thread));
  GCR_ASSIGN(std::vector<std::byte> image, thread.read_state());
  GCR_TRY(
      put_state(image, layout_here(), setting.value(), std::as_bytes(std::span(setting.state()))));
  return thread.write_state(image);
}

Status read_thread(Held& thread, const std::vector<pid_t>& processes, Observed& observed) {
  if (!thread.calls.can_call()) return {};
  GCR_TRY(read_state(thread, observed));
  const Make make = make_in(thread.calls);
  for (const Row& row : kRows) {
    if (row.of_process && !thread.first) continue;
    GCR_ASSIGN(auto setting, read_row(row, make));
    if (!setting) continue;
    if (!row.of_process) setting->set_thread(thread.inner);
    *observed.settings.Add() = std::move(*setting);
  }
  GCR_ASSIGN(const bool keys, has_keyring(thread.calls));
  observed.has_keyrings = observed.has_keyrings || keys;
  if (!thread.first) return {};
  const auto add = [&](std::string_view name, std::uint64_t value, std::uint64_t usual) {
    if (value == usual) return;
    proto::Setting& setting = *observed.settings.Add();
    setting.set_name(std::string(name));
    setting.set_value(value);
  };
  const pid_t pid = processes[thread.process];
  GCR_ASSIGN(const int locks, read_lock_future(pid, thread.calls));
  add(kLockFuture, static_cast<std::uint64_t>(locks), 0);
  add(kCoredumpFilter, read_filter(pid), kUsualCoredumpFilter);
  return {};
}

/// What a process that was restored here has, unless somebody sets it: what we have.
std::map<std::string_view, proto::Setting> own_settings() {
  std::map<std::string_view, proto::Setting> own;
  for (const Row& row : kRows) {
    const auto setting = read_row(row, make_here);
    if (setting && *setting) own[row.name] = **setting;
  }
  return own;
}

/// By name and thread.
using Told = std::map<std::pair<std::string, pid_t>, const proto::Setting*>;

Result<Told> by_name(const Settings& settings) {
  Told told;
  for (const proto::Setting& setting : settings) {
    const auto row = std::ranges::find(kRows, setting.name(), &Row::name);
    const bool is_state = setting.name() == kExtendedState;
    const bool known = row != kRows.end() || is_state || setting.name() == kLockFuture ||
                       setting.name() == kCoredumpFilter;
    const bool of_process = row == kRows.end() ? !is_state : row->of_process;
    if (!known || of_process != (setting.thread() == 0) || setting.nodes().size() > kNodeBytes ||
        setting.state().size() > (is_state ? kMaxStateBytes : 0) ||
        !told.emplace(std::pair(setting.name(), setting.thread()), &setting).second) {
      return Error(Code::kProtocol, fmt::format("\"{}\" of thread {} is no setting of a process",
                                                setting.name(), setting.thread()));
    }
  }
  return told;
}

class Applying {
 public:
  explicit Applying(std::vector<Told> told) : told_(std::move(told)), own_(own_settings()) {}

  /// Whether there is anything to set in threads.
  bool is_needed() const {
    return !own_.empty() || read_filter(::getpid()) != kUsualCoredumpFilter ||
           std::ranges::any_of(told_, [](const Told& one) { return !one.empty(); });
  }

  Status apply(std::vector<Held>& held, const std::vector<pid_t>& processes) {
    // First what belongs to threads alone: the rest may forbid something.
    for (Held& thread : held) GCR_TRY(set_rows(thread, processes, false));
    for (Held& thread : held) {
      if (!thread.first) continue;
      const pid_t pid = processes[thread.process];
      GCR_TRY(apply_filter(thread, pid));
      if (const proto::Setting* locks = find(thread, kLockFuture, 0)) {
        GCR_ASSIGN(const auto result, thread.calls.call({SYS_mlockall, {locks->value()}}));
        GCR_TRY(judge(pid, *locks, result, {}));
      }
      GCR_TRY(set_rows(thread, processes, true));
    }
    // With the permission that its process has by now.
    for (Held& thread : held) {
      const proto::Setting* state = find(thread, kExtendedState, thread.inner);
      if (state != nullptr && thread.calls.can_call()) GCR_TRY(write_state(thread.calls, *state));
    }
    return {};
  }

  std::vector<std::string> take_notes() { return std::move(notes_); }

 private:
  const proto::Setting* find(const Held& thread, std::string_view name, pid_t tid) const {
    const Told& told = told_[thread.process];
    const auto found = told.find({std::string(name), tid});
    return found == told.end() ? nullptr : found->second;
  }

  Status apply_filter(const Held& thread, pid_t pid) {
    proto::Setting wanted;
    wanted.set_name(std::string(kCoredumpFilter));
    wanted.set_value(kUsualCoredumpFilter);
    if (const proto::Setting* told = find(thread, kCoredumpFilter, 0)) wanted = *told;
    if (wanted.value() == read_filter(pid)) return {};
    return judge(pid, wanted, set_filter(pid, wanted.value()), {});
  }

  Status set_rows(Held& thread, const std::vector<pid_t>& processes, bool of_process) {
    if (!thread.calls.can_call()) return {};
    for (const Row& row : kRows) {
      if (row.of_process != of_process) continue;
      const proto::Setting* told = find(thread, row.name, of_process ? 0 : thread.inner);
      const auto own = own_.find(row.name);
      const proto::Setting wanted = told != nullptr ? *told : usual(row);
      if (is_same(wanted, own == own_.end() ? usual(row) : own->second)) continue;
      GCR_ASSIGN(const auto result, set_row(row, wanted, make_in(thread.calls)));
      GCR_TRY(judge(processes[thread.process], wanted, result, row.finding));
    }
    return {};
  }

  Status judge(pid_t pid, const proto::Setting& setting, std::int64_t result,
               std::string_view finding) {
    if (result >= 0) return {};
    std::string text = fmt::format(
        "process {} cannot have {} {:#x}{} here: {}", pid, setting.name(), setting.value(),
        setting.thread() != 0 ? fmt::format(" of thread {}", setting.thread()) : "",
        std::generic_category().message(static_cast<int>(-result)));
    if (!finding.empty()) text += fmt::format(" [{}]", finding);
    if (setting.needed()) return Error(Code::kUnsupported, std::move(text));
    notes_.push_back(std::move(text));
    return {};
  }

  const std::vector<Told> told_;
  const std::map<std::string_view, proto::Setting> own_;
  std::vector<std::string> notes_;
};

}  // namespace

Result<std::vector<Observed>> read_settings(const std::vector<pid_t>& processes,
                                            const Standstill& standstill) {
  std::vector<Observed> observed(processes.size());
  if (processes.empty()) return observed;
  Bystanders bystanders(processes.front());
  for (const pid_t pid : processes) {
    if (!procfs::has_ended(pid)) GCR_TRY(bystanders.prepare(procfs::threads(pid)));
  }
  GCR_TRY(with_all_held(processes, standstill, [&](std::vector<Held>& held) -> Status {
    for (Held& thread : held) {
      Observed& of_process = observed[thread.process];
      GCR_TRY(read_thread(thread, processes, of_process));
      if (!thread.calls.can_call()) continue;
      GCR_ASSIGN(const bool confined, bystanders.is_in_domain(thread.calls));
      if (confined) of_process.in_landlock.push_back(thread.calls.tid());
    }
    return {};
  }));
  return observed;
}

Result<std::vector<std::string>> apply_settings(
    const std::vector<std::pair<pid_t, Settings>>& processes, const Standstill& standstill) {
  std::vector<pid_t> pids;
  std::vector<Told> told;
  for (const auto& [pid, settings] : processes) {
    pids.push_back(pid);
    GCR_ASSIGN(told.emplace_back(), by_name(settings));
  }
  Applying applying(std::move(told));
  if (!applying.is_needed()) return std::vector<std::string>();
  GCR_TRY(with_all_held(pids, standstill,
                        [&](std::vector<Held>& held) { return applying.apply(held, pids); }));
  return applying.take_notes();
}

}  // namespace gcr::criu
