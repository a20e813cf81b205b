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
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include "migrate-agent/criu/apart.h"
#include "migrate-agent/criu/extended_state.h"
#include "migrate-agent/criu/thread_calls.h"
#include "migrate-agent/procfs/procfs.h"
#include "src/base/side_by_side.h"
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

std::size_t bytes_of(Form form) {
  switch (form) {
    case Form::kResult:
      return 0;
    case Form::kInt:
      return sizeof(int);
    case Form::kPolicy:
      break;
  }
  return sizeof(CallBytes);
}

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

/// A thread, when it was listed.
struct Thread {
  std::size_t process;  ///< its place
  pid_t tid;
  pid_t inner = 0;  ///< its id in the process's own PID namespace
  bool seccomp = false;
  Owner owner{};
  std::string store_bypass{};     ///< in the words of its status in /proc
  std::string indirect_branch{};  ///< likewise
};

/// Which values can be seen from outside, as the calls would give them; none: the thread has to be
/// asked.
using FromOutside = std::optional<std::uint64_t> (*)(const Thread& thread);

std::optional<std::uint64_t> number_in(const std::string& path, int base) {
  const std::string text = procfs::read_text(path);
  if (text.empty()) return std::nullopt;
  return std::strtoull(text.c_str(), nullptr, base);
}

std::optional<std::uint64_t> timer_slack_of(const Thread& thread) {
  return number_in(fmt::format("/proc/{}/timerslack_ns", thread.tid), 10);
}
std::optional<std::uint64_t> personality_of(const Thread& thread) {
  return number_in(fmt::format("/proc/{}/personality", thread.tid), 16);
}
std::optional<std::uint64_t> io_priority_of(const Thread& thread) {
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

/// The words are those of fs/proc/array.c in the kernel; "vulnerable" stands for two values.
std::optional<std::uint64_t> store_bypass_of(const Thread& thread) {
  if (!can_be_chosen<PR_SPEC_STORE_BYPASS>()) return PR_SPEC_NOT_AFFECTED;
  if (thread.store_bypass == "thread vulnerable") return PR_SPEC_PRCTL | PR_SPEC_ENABLE;
  if (thread.store_bypass == "thread mitigated") return PR_SPEC_PRCTL | PR_SPEC_DISABLE;
  if (thread.store_bypass == "thread force mitigated") {
    return PR_SPEC_PRCTL | PR_SPEC_FORCE_DISABLE;
  }
  return std::nullopt;
}
std::optional<std::uint64_t> indirect_branch_of(const Thread& thread) {
  if (!can_be_chosen<PR_SPEC_INDIRECT_BRANCH>()) return PR_SPEC_NOT_AFFECTED;
  if (thread.indirect_branch == "conditional enabled") return PR_SPEC_PRCTL | PR_SPEC_ENABLE;
  if (thread.indirect_branch == "conditional disabled") return PR_SPEC_PRCTL | PR_SPEC_DISABLE;
  if (thread.indirect_branch == "conditional force disabled") {
    return PR_SPEC_PRCTL | PR_SPEC_FORCE_DISABLE;
  }
  return std::nullopt;
}
std::optional<std::uint64_t> cache_flush_of(const Thread&) {
  if (!can_be_chosen<kCacheFlush>()) return PR_SPEC_NOT_AFFECTED;
  return std::nullopt;
}
#ifdef __x86_64__
/// Where no thread can be denied it, all may use it.
std::optional<std::uint64_t> cpuid_of(const Thread&) {
  static const bool can_be_denied = ::syscall(SYS_arch_prctl, kSetCpuid, 1) == 0 || errno != ENODEV;
  if (can_be_denied) return std::nullopt;
  return 1;
}
#endif

struct Row {
  std::string_view name;
  bool of_process;
  Form form;
  ThreadCall get;
  ThreadCall set;
  std::uint64_t usual;
  /// From what `get` says to what `set` takes.
  std::uint64_t (*value)(std::uint64_t) = itself;
  FromOutside outside = nullptr;
  std::string_view finding{};  ///< of one that confines a process
  bool needed = false;         ///< a program that has it cannot go on without
};

/// In the order in which they are set: what confines comes last.
constexpr auto kRows = std::to_array<Row>({
    {"timer-slack", false, Form::kResult, control(PR_GET_TIMERSLACK),
     control(PR_SET_TIMERSLACK, kValue), kUsualTimerSlackNs, timer_slack, timer_slack_of},
    {"io-priority",
     false,
     Form::kResult,
     {SYS_ioprio_get, {kOwnProcess}},
     {SYS_ioprio_set, {kOwnProcess, 0, kValue}},
     0,
     io_priority,
     io_priority_of},
    {"personality",
     false,
     Form::kResult,
     {SYS_personality, {0xffffffff}},
     {SYS_personality, {kValue}},
     0,
     itself,
     personality_of},
    {"io-flusher", false, Form::kResult, control(PR_GET_IO_FLUSHER),
     control(PR_SET_IO_FLUSHER, kValue), 0},
    {"machine-check", false, Form::kResult, control(PR_MCE_KILL_GET),
     control(PR_MCE_KILL, PR_MCE_KILL_SET, kValue), PR_MCE_KILL_DEFAULT},
    {"store-bypass", false, Form::kResult, control(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS),
     control(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, kValue), PR_SPEC_ENABLE, speculation,
     store_bypass_of},
    {"indirect-branch", false, Form::kResult,
     control(PR_GET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH),
     control(PR_SET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, kValue), PR_SPEC_ENABLE, speculation,
     indirect_branch_of},
    {"cache-flush", false, Form::kResult, control(PR_GET_SPECULATION_CTRL, kCacheFlush),
     control(PR_SET_SPECULATION_CTRL, kCacheFlush, kValue), PR_SPEC_DISABLE, cache_flush,
     cache_flush_of},
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
     1,
     itself,
     cpuid_of},
    {"amx",
     true,
     Form::kInt,
     {SYS_arch_prctl, {kGetPermissions, kBytes}},
     {SYS_arch_prctl, {kRequestPermission, kValue}},
     0,
     amx,
     nullptr,
     {},
     true},
#endif
    {"memory-merge", true, Form::kResult, control(kGetMemoryMerge),
     control(kSetMemoryMerge, kValue), 0},
    {"memory-deny-write-execute", true, Form::kResult, control(kGetMdwe), control(kSetMdwe, kValue),
     0, itself, nullptr, "mdwe", true},
});

// No single call. Of a process:
constexpr std::string_view kLockFuture = "lock-future";
constexpr std::string_view kCoredumpFilter = "coredump-filter";
constexpr std::uint64_t kUsualCoredumpFilter = 0x33;
// Of a thread:
constexpr std::string_view kExtendedState = "extended-state";

/// What the kernel said to a row's question. None if it is the usual, or the kernel does not know
/// it.
std::optional<proto::Setting> setting_of(const Row& row, std::int64_t result,
                                         const CallBytes& bytes) {
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

/// Of the calling thread.
std::optional<proto::Setting> read_own(const Row& row) {
  CallBytes bytes{};
  const auto address = reinterpret_cast<std::uint64_t>(bytes.data());
  const auto& a = row.get.with_bytes_at(address, bytes.size()).arguments;
  const long result = ::syscall(row.get.number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return setting_of(row, result < 0 ? -errno : result, bytes);
}

/// What the kernel says to it.
Result<std::int64_t> set_row(const Row& row, const proto::Setting& setting, ThreadCalls& thread) {
  ThreadCall call = row.set;
  std::ranges::replace(call.arguments, kValue, setting.value());
  CallBytes bytes{};
  std::memcpy(bytes.data() + kNodesAt, setting.nodes().data(),
              std::min(setting.nodes().size(), kNodeBytes));
  return thread.call(call, bytes);
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

void read_status(pid_t pid, Thread& thread) {
  auto status = procfs::status_fields(fmt::format("{}/task/{}", pid, thread.tid));
  thread.inner = procfs::innermost_pid(status);
  thread.seccomp = status["Seccomp"] != "0";
  thread.owner = owner_of(status);
  thread.store_bypass = status["Speculation_Store_Bypass"];
  thread.indirect_branch = status["SpeculationIndirectBranch"];
}

/// All threads of processes that stand still.
std::vector<Thread> list_threads(const std::vector<pid_t>& processes) {
  std::vector<Thread> threads;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    if (procfs::has_ended(processes[i])) continue;
    for (const pid_t tid : procfs::threads(processes[i])) threads.push_back({i, tid});
  }
  (void)share_out_brief(threads.size(), [&](std::size_t i) -> Status {
    read_status(processes[threads[i].process], threads[i]);
    return {};
  });
  std::erase_if(threads, [](const Thread& thread) { return thread.inner == 0; });
  return threads;
}

/// A thread that does not run, held by a tracer of ours.
struct Held {
  const Thread* thread;
  ThreadCalls calls;
  bool first = false;  ///< that can make calls, of its process
};

/// Several tracers that hold all threads of processes that stand still, each its share of them, in
/// their order.
class Holding {
 public:
  using Work = std::function<Status(std::vector<Held>& share, Meeting& others)>;

  Holding(const std::vector<pid_t>& processes, const std::vector<Thread>& threads,
          const Standstill& standstill)
      : processes_(processes),
        threads_(threads),
        standstill_(standstill),
        tracers_(tracers_for(threads.size())),
        shares_(tracers_) {}

  /// While all threads are held, none but those that work for us can run, whoever continues them.
  /// `work` is called by each tracer.
  Status with_all_held(const Work& work) {
    GCR_TRY(find_call_sites());
    Status done = run_apart(tracers_, [&](std::size_t tracer, Meeting& others) {
      (void)hold_and_work(tracer, others, work);  // its error stays with the meeting
      const bool freezes = tracer == 0 && standstill_.freeze;
      const Status all = others.meet(freezes ? standstill_.freeze() : Status());
      shares_[tracer].clear();
      return all;
    });
    for (const pid_t pid : processes_) {
      if (standstill_.freeze || procfs::has_ended(pid)) continue;
      const Status stopped = procfs::wait_until_stopped(pid);
      if (done) done = stopped;
    }
    return done;
  }

 private:
  static std::size_t tracers_for(std::size_t threads) {
    constexpr std::size_t kWorthwhile = 32;  // threads for a tracer
    constexpr std::size_t kMost = 16;
    const std::size_t processors = std::max(1u, std::thread::hardware_concurrency());
    return std::clamp<std::size_t>(threads / kWorthwhile, 1, std::min(kMost, processors));
  }

  Status find_call_sites() {
    sites_.resize(processes_.size());
    for (const Thread& thread : threads_) {
      if (sites_[thread.process]) continue;
      auto found = CallSite::find(processes_[thread.process]);
      if (!found && found.error().code() != Code::kNotFound) return found.error();
      if (found) sites_[thread.process] = *std::move(found);
    }
    return {};
  }

  Status hold_and_work(std::size_t tracer, Meeting& others, const Work& work) {
    const bool in_group = static_cast<bool>(standstill_.freeze);
    GCR_TRY(others.meet(
        {}, [&] { return in_group && !standstill_.traceable ? standstill_.thaw() : Status(); }));
    GCR_TRY(others.meet(hold_share(tracer), [&]() -> Status {
      GCR_TRY(check_complete());
      mark_first();
      return in_group && standstill_.traceable ? standstill_.thaw() : Status();
    }));
    return others.meet(work(shares_[tracer], others));
  }

  Status hold_share(std::size_t tracer) {
    std::vector<Held>& share = shares_[tracer];
    const std::size_t end = threads_.size() * (tracer + 1) / tracers_;
    for (std::size_t i = threads_.size() * tracer / tracers_; i < end; ++i) {
      const Thread& thread = threads_[i];
      if (!sites_[thread.process]) continue;
      auto calls = ThreadCalls::seize(sites_[thread.process], thread.tid, thread.seccomp);
      if (!calls && is_gone(calls.error(), thread)) continue;
      if (!calls) return calls.error();
      share.push_back({&thread, std::move(*calls)});
    }
    std::vector<Held> held;
    for (Held& one : share) {
      const Status stopped = one.calls.wait_until_stopped();
      if (!stopped && !is_gone(stopped.error(), *one.thread)) return stopped;
      if (stopped) held.push_back(std::move(one));
    }
    share = std::move(held);
    return {};
  }

  bool is_gone(const Error& error, const Thread& thread) const {
    if (error.code() == Code::kNotFound) return true;
    const auto stat =
        procfs::read_stat(fmt::format("{}/task/{}", processes_[thread.process], thread.tid));
    return !stat || procfs::is_exiting(*stat);
  }

  /// Nobody was started since they were listed.
  Status check_complete() const {
    std::set<pid_t> listed;
    for (const Thread& thread : threads_) listed.insert(thread.tid);
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      if (!sites_[i]) continue;
      for (const pid_t tid : procfs::threads(processes_[i])) {
        if (listed.contains(tid)) continue;
        return Error(
            Code::kUnavailable,
            fmt::format("thread {} of process {} was started while the process stood still", tid,
                        processes_[i]));
      }
    }
    return {};
  }

  void mark_first() {
    std::set<std::size_t> marked;
    for (std::vector<Held>& share : shares_) {
      for (Held& held : share) {
        held.first = held.calls.can_call() && marked.insert(held.thread->process).second;
      }
    }
  }

  const std::vector<pid_t>& processes_;
  const std::vector<Thread>& threads_;
  const Standstill& standstill_;
  const std::size_t tracers_;
  std::vector<std::shared_ptr<const CallSite>> sites_;  ///< of each process that has not ended
  std::vector<std::vector<Held>> shares_;               ///< of each tracer
};

const StateLayout& layout_here() {
  static const StateLayout layout = StateLayout::of_this_processor();
  return layout;
}

/// Before the thread makes any call. Mostly nothing: few processors have more than CRIU carries.
Status read_state(const Held& held, Observed& observed) {
  static const bool exists = layout_here().exceeds_criu();
  if (!exists) return {};
  GCR_ASSIGN(const std::vector<std::byte> image, held.calls.read_state());
  const ExtendedState state = take_state(image, layout_here());
  if (state.components == 0) return {};
  proto::Setting& setting = *observed.settings.Add();
  setting.set_name(std::string(kExtendedState));
  setting.set_value(state.components);
  setting.set_state(state.bytes.data(), state.bytes.size());
  setting.set_thread(held.thread->inner);
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

/// What some threads have: each question is put to all of them at the same time.
class Reading {
 public:
  /// Only those that can make calls.
  explicit Reading(std::vector<Held>& share) {
    for (Held& held : share) {
      if (held.calls.can_call()) threads_.push_back(&held);
    }
  }

  Status read(const std::vector<pid_t>& processes, const Bystanders& bystanders) {
    for (Held* held : threads_) GCR_TRY(read_state(*held, of(*held)));
    for (const Row& row : kRows) GCR_TRY(read_row(row));
    for (const int keyring : {KEY_SPEC_THREAD_KEYRING, KEY_SPEC_PROCESS_KEYRING}) {
      GCR_TRY(read_keyring(keyring));
    }
    GCR_TRY(read_domains(bystanders));
    for (Held* held : threads_) {
      if (held->first) GCR_TRY(read_process(processes[held->thread->process], *held));
    }
    return {};
  }

  void merge_into(std::vector<Observed>& all) const {
    for (const auto& [process, some] : observed_) {
      Observed& its = all[process];
      its.settings.MergeFrom(some.settings);
      its.in_landlock.insert(its.in_landlock.end(), some.in_landlock.begin(),
                             some.in_landlock.end());
      its.has_keyrings = its.has_keyrings || some.has_keyrings;
    }
  }

 private:
  Observed& of(const Held& held) { return observed_[held.thread->process]; }

  Status read_row(const Row& row) {
    std::vector<Held*> asked;
    for (Held* held : threads_) {
      if (row.of_process && !held->first) continue;
      const auto seen = row.outside == nullptr ? std::nullopt : row.outside(*held->thread);
      if (seen) {
        add(*held, row, static_cast<std::int64_t>(*seen), {});
      } else {
        asked.push_back(held);
      }
    }
    std::vector<CallBytes> bytes(asked.size());
    std::vector<ThreadCalls::Made> calls;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      calls.push_back({&asked[i]->calls, row.get, std::span(bytes[i]).first(bytes_of(row.form))});
    }
    GCR_TRY(ThreadCalls::call_all(calls));
    for (std::size_t i = 0; i < asked.size(); ++i) {
      add(*asked[i], row, calls[i].result, bytes[i]);
    }
    return {};
  }

  void add(const Held& held, const Row& row, std::int64_t result, const CallBytes& bytes) {
    auto setting = setting_of(row, result, bytes);
    if (!setting) return;
    if (!row.of_process) setting->set_thread(held.thread->inner);
    *of(held).settings.Add() = std::move(*setting);
  }

  Status read_keyring(int keyring) {
    const auto id = static_cast<std::uint64_t>(static_cast<std::int64_t>(keyring));
    std::vector<ThreadCalls::Made> calls;
    for (Held* held : threads_) {
      calls.push_back({&held->calls, {SYS_keyctl, {KEYCTL_GET_KEYRING_ID, id, 0}}});
    }
    GCR_TRY(ThreadCalls::call_all(calls));
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      if (calls[i].result >= 0) of(*threads_[i]).has_keyrings = true;
    }
    return {};
  }

  Status read_domains(const Bystanders& bystanders) {
    std::vector<ThreadCalls::Made> calls;
    std::vector<Held*> asked;
    for (Held* held : threads_) {
      const auto question = bystanders.question(held->thread->owner);
      if (!question) continue;
      calls.push_back({&held->calls, *question});
      asked.push_back(held);
    }
    GCR_TRY(ThreadCalls::call_all(calls));
    for (std::size_t i = 0; i < asked.size(); ++i) {
      GCR_ASSIGN(const bool confined, Bystanders::is_in_domain(calls[i].result));
      if (confined) of(*asked[i]).in_landlock.push_back(asked[i]->thread->tid);
    }
    return {};
  }

  /// By its first thread.
  Status read_process(pid_t pid, Held& first) {
    GCR_ASSIGN(const int locks, read_lock_future(pid, first.calls));
    add(of(first), kLockFuture, static_cast<std::uint64_t>(locks), 0);
    add(of(first), kCoredumpFilter, read_filter(pid), kUsualCoredumpFilter);
    return {};
  }

  static void add(Observed& observed, std::string_view name, std::uint64_t value,
                  std::uint64_t usual) {
    if (value == usual) return;
    proto::Setting& setting = *observed.settings.Add();
    setting.set_name(std::string(name));
    setting.set_value(value);
  }

  std::vector<Held*> threads_;
  std::map<std::size_t, Observed> observed_;  ///< by the place of the process
};

/// What a process that was restored here has, unless somebody sets it: what we have.
std::map<std::string_view, proto::Setting> own_settings() {
  std::map<std::string_view, proto::Setting> own;
  for (const Row& row : kRows) {
    if (const auto setting = read_own(row)) own[row.name] = *setting;
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

  /// By each tracer, for its threads.
  Status apply(std::vector<Held>& share, const std::vector<pid_t>& processes, Meeting& others) {
    // First what belongs to threads alone: the rest may forbid something.
    GCR_TRY(others.meet(set_rows_of_threads(share, processes)));
    GCR_TRY(others.meet(set_up_processes(share, processes)));
    // With the permission that its process has by now.
    for (Held& held : share) {
      const proto::Setting* state = find(held, kExtendedState, held.thread->inner);
      if (state != nullptr && held.calls.can_call()) GCR_TRY(write_state(held.calls, *state));
    }
    return {};
  }

  std::vector<std::string> take_notes() { return std::move(notes_); }

 private:
  const proto::Setting* find(const Held& held, std::string_view name, pid_t tid) const {
    const Told& told = told_[held.thread->process];
    const auto found = told.find({std::string(name), tid});
    return found == told.end() ? nullptr : found->second;
  }

  Status set_rows_of_threads(std::vector<Held>& share, const std::vector<pid_t>& processes) {
    for (Held& held : share) GCR_TRY(set_rows(held, processes, false));
    return {};
  }

  Status set_up_processes(std::vector<Held>& share, const std::vector<pid_t>& processes) {
    for (Held& held : share) {
      if (!held.first) continue;
      const pid_t pid = processes[held.thread->process];
      GCR_TRY(apply_filter(held, pid));
      if (const proto::Setting* locks = find(held, kLockFuture, 0)) {
        GCR_ASSIGN(const auto result, held.calls.call({SYS_mlockall, {locks->value()}}));
        GCR_TRY(judge(pid, *locks, result, {}));
      }
      GCR_TRY(set_rows(held, processes, true));
    }
    return {};
  }

  Status apply_filter(const Held& held, pid_t pid) {
    proto::Setting wanted;
    wanted.set_name(std::string(kCoredumpFilter));
    wanted.set_value(kUsualCoredumpFilter);
    if (const proto::Setting* told = find(held, kCoredumpFilter, 0)) wanted = *told;
    if (wanted.value() == read_filter(pid)) return {};
    return judge(pid, wanted, set_filter(pid, wanted.value()), {});
  }

  Status set_rows(Held& held, const std::vector<pid_t>& processes, bool of_process) {
    if (!held.calls.can_call()) return {};
    for (const Row& row : kRows) {
      if (row.of_process != of_process) continue;
      const proto::Setting* told = find(held, row.name, of_process ? 0 : held.thread->inner);
      const auto own = own_.find(row.name);
      const proto::Setting wanted = told != nullptr ? *told : usual(row);
      if (is_same(wanted, own == own_.end() ? usual(row) : own->second)) continue;
      GCR_ASSIGN(const auto result, set_row(row, wanted, held.calls));
      GCR_TRY(judge(processes[held.thread->process], wanted, result, row.finding));
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
    const std::lock_guard lock(mutex_);
    notes_.push_back(std::move(text));
    return {};
  }

  const std::vector<Told> told_;
  const std::map<std::string_view, proto::Setting> own_;
  std::mutex mutex_;
  std::vector<std::string> notes_;
};

}  // namespace

Result<std::vector<Observed>> read_settings(const std::vector<pid_t>& processes,
                                            const Standstill& standstill) {
  std::vector<Observed> observed(processes.size());
  if (processes.empty()) return observed;
  const std::vector<Thread> threads = list_threads(processes);
  std::set<Owner> owners;
  for (const Thread& thread : threads) owners.insert(thread.owner);
  Bystanders bystanders(processes.front());
  GCR_TRY(bystanders.prepare(owners));
  Holding holding(processes, threads, standstill);
  std::mutex mutex;
  GCR_TRY(holding.with_all_held([&](std::vector<Held>& share, Meeting&) -> Status {
    Reading reading(share);
    GCR_TRY(reading.read(processes, bystanders));
    const std::lock_guard lock(mutex);
    reading.merge_into(observed);
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
  const std::vector<Thread> threads = list_threads(pids);
  Holding holding(pids, threads, standstill);
  GCR_TRY(holding.with_all_held([&](std::vector<Held>& share, Meeting& others) {
    return applying.apply(share, pids, others);
  }));
  return applying.take_notes();
}

}  // namespace gcr::criu
