#include "migrate-agent/criu/threads/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/keyctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "migrate-agent/criu/threads/extended_state.h"
#include "migrate-agent/criu/threads/settings_table.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {
namespace {

// No single call. Of a process:
constexpr std::string_view kLockFuture = "lock-future";
constexpr std::string_view kCoredumpFilter = "coredump-filter";
constexpr std::uint64_t kUsualCoredumpFilter = 0x33;
// Of a thread:
constexpr std::string_view kExtendedState = "extended-state";

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
  if (locked) GCR_TRY(thread.call({SYS_mincore, {at, page, ThreadCall::kBytes}}, there));
  GCR_TRY(thread.call({SYS_munmap, {at, page}}));
  if (!locked) return 0;
  return (there[0] & std::byte{1}) != std::byte{0} ? MCL_FUTURE : MCL_FUTURE | MCL_ONFAULT;
}

const StateLayout& layout_here() {
  static const StateLayout layout = StateLayout::of_this_processor();
  return layout;
}

/// Before the thread makes any call. Mostly nothing: few processors have more than CRIU carries.
Status read_state(const Held& held, Observed& observed) {
  static const bool exists = layout_here().exceeds_criu();
  if (!exists) return {};
  GCR_ASSIGN(const std::vector<std::byte> image, held.calls->read_state());
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
      if (held.calls->can_call()) threads_.push_back(&held);
    }
  }

  Status read(const std::vector<pid_t>& processes, const Bystanders& bystanders) {
    for (Held* held : threads_) GCR_TRY(read_state(*held, of(*held)));
    for (const SettingRow& row : settings_table()) GCR_TRY(read_row(row));
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

  Status read_row(const SettingRow& row) {
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
      calls.push_back(
          {asked[i]->calls.get(), row.get, std::span(bytes[i]).first(bytes_of(row.form))});
    }
    GCR_TRY(ThreadCalls::call_all(calls));
    for (std::size_t i = 0; i < asked.size(); ++i) {
      add(*asked[i], row, calls[i].result, bytes[i]);
    }
    return {};
  }

  void add(const Held& held, const SettingRow& row, std::int64_t result, const CallBytes& bytes) {
    auto setting = setting_of(row, result, bytes);
    if (!setting) return;
    if (!row.of_process) setting->set_thread(held.thread->inner);
    *of(held).settings.Add() = std::move(*setting);
  }

  Status read_keyring(int keyring) {
    const auto id = static_cast<std::uint64_t>(static_cast<std::int64_t>(keyring));
    std::vector<ThreadCalls::Made> calls;
    for (Held* held : threads_) {
      calls.push_back({held->calls.get(), {SYS_keyctl, {KEYCTL_GET_KEYRING_ID, id, 0}}});
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
      calls.push_back({held->calls.get(), *question});
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
    GCR_ASSIGN(const int locks, read_lock_future(pid, *first.calls));
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

/// What a process that was restored here has, unless it is set: what the agent has.
std::map<std::string_view, proto::Setting> own_settings() {
  std::map<std::string_view, proto::Setting> own;
  for (const SettingRow& row : settings_table()) {
    if (const auto setting = read_own(row)) own[row.name] = *setting;
  }
  return own;
}

/// By name and thread.
using Told = std::map<std::pair<std::string, pid_t>, const proto::Setting*>;

Result<Told> by_name(const Settings& settings) {
  Told told;
  const auto rows = settings_table();
  for (const proto::Setting& setting : settings) {
    const auto row = std::ranges::find(rows, setting.name(), &SettingRow::name);
    const bool is_state = setting.name() == kExtendedState;
    const bool known = row != rows.end() || is_state || setting.name() == kLockFuture ||
                       setting.name() == kCoredumpFilter;
    const bool of_process = row == rows.end() ? !is_state : row->of_process;
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
      if (state != nullptr && held.calls->can_call()) GCR_TRY(write_state(*held.calls, *state));
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
        GCR_ASSIGN(const auto result, held.calls->call({SYS_mlockall, {locks->value()}}));
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
    if (!held.calls->can_call()) return {};
    for (const SettingRow& row : settings_table()) {
      if (row.of_process != of_process) continue;
      const proto::Setting* told = find(held, row.name, of_process ? 0 : held.thread->inner);
      const auto own = own_.find(row.name);
      const proto::Setting wanted = told != nullptr ? *told : usual(row);
      if (is_same(wanted, own == own_.end() ? usual(row) : own->second)) continue;
      GCR_ASSIGN(const auto result, set_row(row, wanted, *held.calls));
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
  const std::vector<ListedThread> threads = list_threads(processes);
  std::set<Owner> owners;
  for (const ListedThread& thread : threads) owners.insert(thread.owner);
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
  const std::vector<ListedThread> threads = list_threads(pids);
  Holding holding(pids, threads, standstill);
  GCR_TRY(holding.with_all_held([&](std::vector<Held>& share, Meeting& others) {
    return applying.apply(share, pids, others);
  }));
  return applying.take_notes();
}

}  // namespace gcr::criu
