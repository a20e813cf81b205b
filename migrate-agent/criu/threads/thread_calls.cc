#include "migrate-agent/criu/threads/thread_calls.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <string>

#include "migrate-agent/criu/threads/extended_state.h"
#include "migrate-agent/criu/threads/interrupted_calls.h"
#include "migrate-agent/linux/ptrace/tracing.h"

namespace gcr::criu {

ThreadCall ThreadCall::with_bytes_at(std::uint64_t address, std::size_t bytes) const {
  ThreadCall call = *this;
  for (std::uint64_t& argument : call.arguments) {
    if (argument - kBytes < bytes) argument = argument - kBytes + address;
  }
  return call;
}

namespace {

constexpr auto kSuspendSeccomp = 1UL << 21;  // PTRACE_O_SUSPEND_SECCOMP
constexpr std::uint64_t kNativeCode = 0x33;  // the code segment of 64-bit programs
constexpr std::size_t kRedZoneBytes = 128;   // below the stack pointer, in use (psABI)
constexpr int kCallStop = SIGTRAP | 0x80;    // PTRACE_O_TRACESYSGOOD
constexpr std::chrono::seconds kStopPatience{2};
constexpr auto kBrief =
    std::chrono::microseconds(500);  // a call takes a few; a sleep takes 50 more
constexpr useconds_t kLookMicroseconds = 50;
constexpr std::size_t kSignalBytes = 8;  // of the kernel's sigset_t

Error thread_ended(pid_t tid) {
  return Error(Code::kNotFound, "thread " + std::to_string(tid) + " has ended");
}

/// The next stop. A wait in the kernel that no signal ends may be long.
Result<int> wait_for_stop(pid_t tid) {
  const auto began = std::chrono::steady_clock::now();
  for (;;) {
    int status = 0;
    const pid_t seen = ::waitpid(tid, &status, __WALL | WNOHANG);
    if (seen == tid && WIFSTOPPED(status)) return status;
    if (seen == tid || (seen < 0 && errno != EINTR)) return thread_ended(tid);
    const auto waited = std::chrono::steady_clock::now() - began;
    if (waited > kStopPatience) {
      return Error(Code::kTimeout, "thread " + std::to_string(tid) + " does not stop");
    }
    if (waited < kBrief) {
      ::sched_yield();
    } else {
      ::usleep(kLookMicroseconds);
    }
  }
}

/// Where the process has a system call instruction: in the vDSO. 0 if it has none.
std::uint64_t find_call(pid_t pid, int memory) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!line.ends_with("[vdso]")) continue;
    std::size_t end = 0;
    const std::uint64_t first = std::stoull(line, &end, 16);
    const std::uint64_t last = std::stoull(line.substr(end + 1), nullptr, 16);
    std::vector<char> code(last - first);
    if (::pread(memory, code.data(), code.size(), static_cast<off_t>(first)) !=
        static_cast<ssize_t>(code.size())) {
      break;
    }
    const std::size_t at = std::string_view(code.data(), code.size()).find("\x0f\x05");
    if (at != std::string_view::npos) return first + at;
  }
  return 0;
}

/// The kernel would not notice any more that the thread was stopped in such a sequence: it begins
/// again, as after any interruption.
void abort_sequence(pid_t tid, int memory, user_regs_struct& registers) {
  __ptrace_rseq_configuration area{};
  if (::ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, sizeof(area), &area) <= 0 ||
      area.rseq_abi_pointer == 0) {
    return;
  }
  std::uint64_t address = 0;
  rseq_cs sequence{};
  if (::pread(memory, &address, sizeof(address),
              static_cast<off_t>(area.rseq_abi_pointer + offsetof(rseq, rseq_cs))) !=
          sizeof(address) ||
      address == 0 ||
      ::pread(memory, &sequence, sizeof(sequence), static_cast<off_t>(address)) !=
          sizeof(sequence)) {
    return;
  }
  if (registers.rip - sequence.start_ip < sequence.post_commit_offset) {
    registers.rip = sequence.abort_ip;
  }
}

void set_call(user_regs_struct& registers, std::uint64_t address, const ThreadCall& call) {
  const auto& arguments = call.arguments;
  registers.rip = address;
  registers.rax = static_cast<std::uint64_t>(call.number);
  registers.orig_rax = ~0ull;  // not in a call: the kernel shall not adjust anything
  registers.rdi = arguments[0];
  registers.rsi = arguments[1];
  registers.rdx = arguments[2];
  registers.r10 = arguments[3];
  registers.r8 = arguments[4];
  registers.r9 = arguments[5];
}

/// Whether a thread, after a call, made this one: the kernel leaves its arguments as they were.
bool is_call(const user_regs_struct& registers, const ThreadCall& call) {
  const std::array arguments{registers.rdi, registers.rsi, registers.rdx,
                             registers.r10, registers.r8,  registers.r9};
  return registers.orig_rax == static_cast<std::uint64_t>(call.number) &&
         std::ranges::equal(arguments, call.arguments);
}

}  // namespace

Error ThreadCalls::cannot(const char* what) const {
  return Error::from_errno(errno,
                           std::string("cannot ") + what + " thread " + std::to_string(tid_));
}

/// Past signals that were about to be delivered: they are.
Status ThreadCalls::wait_until_stopped() {
  for (;;) {
    GCR_ASSIGN(const int status, wait_for_stop(tid_));
    if (status >> 16 == PTRACE_EVENT_STOP) break;
    if (::ptrace(PTRACE_CONT, tid_, nullptr, WSTOPSIG(status)) != 0) return cannot("continue");
  }
  if (::ptrace(PTRACE_GETREGS, tid_, nullptr, &saved_) != 0) return cannot("read the registers of");
  if (saved_.cs != kNativeCode || site_->instruction == 0) return {};
  abort_sequence(tid_, site_->memory.get(), saved_);
  make_again(site_->pid, tid_, saved_);
  kept_ = true;
  return {};
}

/// Before the first call: the thread may have been frozen when it stopped.
Status ThreadCalls::prepare() {
  if (changed_) return {};
  if (::ptrace(PTRACE_GETSIGMASK, tid_, kSignalBytes, &blocked_) != 0) {
    return cannot("read the signals of");
  }
  const std::uint64_t all = ~0ull;
  if (::ptrace(PTRACE_SETSIGMASK, tid_, kSignalBytes, &all) != 0) return cannot("block signals of");
  changed_ = true;
  return {};
}

/// Lets the thread begin a call; `address` leads to a system call.
Status ThreadCalls::begin(std::uint64_t address, const ThreadCall& call) {
  if (!kept_) {
    return Error(Code::kUnsupported, "thread " + std::to_string(tid_) + " runs 32-bit code");
  }
  GCR_TRY(prepare());
  user_regs_struct registers = saved_;
  set_call(registers, address, call);
  if (::ptrace(PTRACE_SETREGS, tid_, nullptr, &registers) != 0) {
    return cannot("set the registers of");
  }
  GCR_TRY(go_to_call_stop());
  stops_left_ = 2;
  return {};
}

/// Up to the stop after it.
Status ThreadCalls::finish_call() {
  while (stops_left_ > 0) {
    GCR_TRY(wait_for_call_stop());
    if (stops_left_ > 0) GCR_TRY(go_to_call_stop());
  }
  return {};
}

Status ThreadCalls::go_to_call_stop(int deliver) const {
  if (::ptrace(PTRACE_SYSCALL, tid_, nullptr, deliver) != 0) return cannot("continue");
  return {};
}

/// A stop that comes meanwhile comes into force; the thread goes on all the same.
Status ThreadCalls::wait_for_call_stop() {
  for (;;) {
    GCR_ASSIGN(const int status, wait_for_stop(tid_));
    const int signal_number = WSTOPSIG(status);
    const int event = status >> 16;
    if (event == 0 && signal_number == kCallStop) {
      --stops_left_;
      return {};
    }
    if (event == 0 && signal_number != SIGSTOP) {
      stops_left_ = 0;
      return Error(Code::kInternal, "thread " + std::to_string(tid_) + " gets signal " +
                                        std::to_string(signal_number) + " in a call");
    }
    GCR_TRY(go_to_call_stop(event == 0 ? SIGSTOP : 0));
  }
}

Result<std::int64_t> ThreadCalls::result_of(const ThreadCall& call) const {
  user_regs_struct registers{};
  if (::ptrace(PTRACE_GETREGS, tid_, nullptr, &registers) != 0) {
    return cannot("read the registers of");
  }
  if (is_call(registers, call)) return static_cast<std::int64_t>(registers.rax);
  return Error(Code::kDataLoss, "thread " + std::to_string(tid_) +
                                    " has not made the call that it was told to make");
}

Result<std::int64_t> ThreadCalls::make_at(std::uint64_t address, const ThreadCall& call) {
  GCR_TRY(begin(address, call));
  GCR_TRY(finish_call());
  return result_of(call);
}

/// Below the stack.
off_t ThreadCalls::address_of(std::size_t bytes) const {
  constexpr std::uint64_t kAlignment = 16;
  return static_cast<off_t>((saved_.rsp - kRedZoneBytes - bytes) / kAlignment * kAlignment);
}

Status ThreadCalls::lend(std::span<const std::byte> bytes) {
  const int memory = site_->memory.get();
  const off_t address = address_of(bytes.size());
  const auto size = static_cast<ssize_t>(bytes.size());
  std::vector<std::byte> before(bytes.size());
  if (::pread(memory, before.data(), before.size(), address) != size) {
    return cannot("read the stack of");
  }
  lent_ = std::move(before);
  if (::pwrite(memory, bytes.data(), bytes.size(), address) != size)
    return cannot("use the stack of");
  return {};
}

Status ThreadCalls::take_back(std::span<std::byte> bytes) {
  const auto size = static_cast<ssize_t>(bytes.size());
  if (::pread(site_->memory.get(), bytes.data(), bytes.size(), address_of(bytes.size())) != size) {
    return cannot("read the stack of");
  }
  return put_back_stack();
}

Status ThreadCalls::put_back_stack() {
  const std::vector<std::byte> before = std::move(lent_);
  lent_.clear();
  const off_t address = address_of(before.size());
  if (::pwrite(site_->memory.get(), before.data(), before.size(), address) !=
      static_cast<ssize_t>(before.size())) {
    return cannot("put back the stack of");
  }
  return {};
}

Status ThreadCalls::let_go() {
  if (!attached_) return {};
  attached_ = false;
  Status status = finish_call();
  if (!lent_.empty()) {
    const Status whole = put_back_stack();
    if (status) status = whole;
  }
  if (kept_ && ::ptrace(PTRACE_SETREGS, tid_, nullptr, &saved_) != 0 && errno != ESRCH) {
    status = cannot("put back the registers of");
  }
  if (changed_) ::ptrace(PTRACE_SETSIGMASK, tid_, kSignalBytes, &blocked_);
  if (!tracing::detach(tid_, 0) && errno != ESRCH && status) status = cannot("let go of");
  return status;
}

Result<std::shared_ptr<const CallSite>> CallSite::find(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/mem";
  UniqueFd memory(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!memory && (errno == ENOENT || errno == ESRCH)) return thread_ended(pid);
  if (!memory) return Error::from_errno(errno, "cannot open " + path);
  const std::uint64_t instruction = find_call(pid, memory.get());
  return std::make_shared<const CallSite>(pid, std::move(memory), instruction);
}

Result<std::unique_ptr<ThreadCalls>> ThreadCalls::seize(std::shared_ptr<const CallSite> site,
                                                        pid_t tid, bool seccomp) {
  std::unique_ptr<ThreadCalls> thread(new ThreadCalls(std::move(site), tid));
  const unsigned long options = PTRACE_O_TRACESYSGOOD | (seccomp ? kSuspendSeccomp : 0);
  if (::ptrace(PTRACE_SEIZE, tid, nullptr, options) != 0) {
    if (errno == ESRCH) return thread_ended(tid);
    return thread->cannot("seize");
  }
  thread->attached_ = true;
  if (::ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) != 0) return thread_ended(tid);
  return thread;
}

Result<std::int64_t> ThreadCalls::call(const ThreadCall& call, std::span<std::byte> bytes) {
  Made made{this, call, bytes};
  GCR_TRY(call_all({&made, 1}));
  return made.result;
}

/// One step of all after the other: while one runs to its next stop, others are let go to theirs.
Status ThreadCalls::call_all(std::span<Made> calls) {
  for (Made& one : calls) {
    ThreadCalls& thread = *one.thread;
    if (!one.bytes.empty()) {
      GCR_TRY(thread.lend(one.bytes));
      const auto address = static_cast<std::uint64_t>(thread.address_of(one.bytes.size()));
      one.call = one.call.with_bytes_at(address, one.bytes.size());
    }
    GCR_TRY(thread.begin(thread.site_->instruction, one.call));
  }
  for (const Made& one : calls) {
    GCR_TRY(one.thread->wait_for_call_stop());
    GCR_TRY(one.thread->go_to_call_stop());
  }
  for (Made& one : calls) {
    ThreadCalls& thread = *one.thread;
    GCR_TRY(thread.finish_call());
    GCR_ASSIGN(one.result, thread.result_of(one.call));
    if (!one.bytes.empty()) GCR_TRY(thread.take_back(one.bytes));
  }
  return {};
}

Result<std::vector<std::byte>> ThreadCalls::read_state() const {
  std::vector<std::byte> state(kMaxStateBytes);
  iovec all{state.data(), state.size()};
  if (::ptrace(PTRACE_GETREGSET, tid_, NT_X86_XSTATE, &all) != 0) {
    return cannot("read the extended state of");
  }
  state.resize(all.iov_len);
  return state;
}

Status ThreadCalls::write_state(std::span<const std::byte> state) {
  iovec all{const_cast<std::byte*>(state.data()), state.size()};
  if (::ptrace(PTRACE_SETREGSET, tid_, NT_X86_XSTATE, &all) != 0) {
    return cannot("set the extended state of");
  }
  return {};
}

/// They are followed by a system call that changes nothing, where the thread stops again: a trap
/// would change how the program handles SIGTRAP.
Status ThreadCalls::execute(std::span<const std::byte> instructions) {
  constexpr std::array kSystemCall{std::byte{0x0f}, std::byte{0x05}};
  std::vector<std::byte> code(instructions.begin(), instructions.end());
  code.insert(code.end(), kSystemCall.begin(), kSystemCall.end());
  const ThreadCall map{
      SYS_mmap, {0, code.size(), PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, ~0ull, 0}};
  GCR_ASSIGN(const std::int64_t mapped, make_at(site_->instruction, map));
  if (mapped < 0) {
    errno = static_cast<int>(-mapped);
    return cannot("map code in");
  }
  const auto address = static_cast<std::uint64_t>(mapped);
  Status done;
  if (::pwrite(site_->memory.get(), code.data(), code.size(), static_cast<off_t>(mapped)) !=
      static_cast<ssize_t>(code.size())) {
    done = cannot("write code of");
  } else {
    const auto executed = make_at(address, {SYS_getpid, {}});
    if (!executed) done = executed.error();
  }
  GCR_TRY(make_at(site_->instruction, {SYS_munmap, {address, code.size()}}));
  return done;
}

}  // namespace gcr::criu
