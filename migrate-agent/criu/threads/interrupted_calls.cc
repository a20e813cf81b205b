#include "migrate-agent/criu/threads/interrupted_calls.h"

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/linux/ptrace/tracing.h"

namespace gcr::criu {

namespace {

constexpr std::uint32_t kX86 = 1;
constexpr std::uint32_t kNative = 1;
constexpr std::uint64_t kInterrupted = static_cast<std::uint64_t>(-EINTR);
constexpr std::uint64_t kCallInstructionBytes = 2;  // syscall

/// Calls without an effect if they fail with EINTR.
constexpr std::array kRepeatable = {SYS_read,        SYS_readv,           SYS_poll,
                                    SYS_ppoll,       SYS_select,          SYS_pselect6,
                                    SYS_nanosleep,   SYS_clock_nanosleep, SYS_futex,
                                    SYS_epoll_wait,  SYS_epoll_pwait,     SYS_epoll_pwait2,
                                    SYS_recvfrom,    SYS_recvmsg,         SYS_recvmmsg,
                                    SYS_accept,      SYS_accept4,         SYS_semop,
                                    SYS_semtimedop,  SYS_msgrcv,          SYS_rt_sigtimedwait,
                                    SYS_io_getevents};

bool repeatable(std::uint64_t call) {
  return std::find(kRepeatable.begin(), kRepeatable.end(), static_cast<long>(call)) !=
         kRepeatable.end();
}

bool signal_is_due(pid_t pid, pid_t tid) {
  const auto status = procfs::status_fields(fmt::format("{}/task/{}", pid, tid));
  const auto set = [&status](const char* name) { return procfs::bits_in(status, name); };
  // The stop that the dump ended with interrupts no call.
  constexpr std::uint64_t kStop = 1ull << (SIGSTOP - 1);
  return ((set("SigPnd") | set("ShdPnd")) & ~set("SigBlk") & ~kStop) != 0;
}

/// A call that was already continued once appears as restart_syscall. The instruction before tells
/// which call it is: "mov $number,%eax; syscall", as in C libraries.
std::optional<std::uint64_t> number_in_code(pid_t pid, std::uint64_t ip) {
  std::ifstream memory("/proc/" + std::to_string(pid) + "/mem", std::ios::binary);
  std::array<unsigned char, 7> code{};
  if (ip < code.size()) return std::nullopt;
  memory.seekg(static_cast<std::streamoff>(ip - code.size()));
  if (!memory.read(reinterpret_cast<char*>(code.data()), code.size())) return std::nullopt;
  if (code[0] != 0xb8 || code[5] != 0x0f || code[6] != 0x05) return std::nullopt;
  return code[1] | code[2] << 8 | code[3] << 16 | static_cast<std::uint64_t>(code[4]) << 24;
}

/// The registers that make the call again.
struct Restart {
  std::uint64_t call;
  std::uint64_t old_ip;
  std::uint64_t ip;
  std::uint64_t di;
  std::uint64_t dx;
};

std::optional<Restart> plan_restart(pid_t pid, const wire::RegistersX86& registers) {
  if (registers.mode() != 0 && registers.mode() != kNative) return std::nullopt;
  if (registers.ax() != kInterrupted || static_cast<std::int64_t>(registers.orig_ax()) < 0) {
    return std::nullopt;
  }
  std::optional<std::uint64_t> call = registers.orig_ax();
  if (*call == SYS_restart_syscall) call = number_in_code(pid, registers.ip());
  if (!call || !repeatable(*call)) return std::nullopt;
  Restart restart{*call, registers.ip(), registers.ip() - kCallInstructionBytes, registers.di(),
                  registers.dx()};
  // The kernel has written the remaining time there.
  if (*call == SYS_nanosleep && registers.si() != 0) restart.di = registers.si();
  if (*call == SYS_clock_nanosleep && registers.si() == 0 && registers.r10() != 0) {
    restart.dx = registers.r10();
  }
  return restart;
}

void apply(const Restart& restart, user_regs_struct& registers) {
  registers.rax = restart.call;
  registers.orig_rax = ~0ull;  // not in a call: the kernel shall not adjust anything
  registers.rip = restart.ip;
  registers.rdi = restart.di;
  registers.rdx = restart.dx;
}

/// True if the live thread had the registers that were dumped, and has the new ones.
Status restart_in_thread(pid_t tid, const Restart& restart) {
  auto signal_number = tracing::stop(tid, 0);
  if (!signal_number) return signal_number.error();
  user_regs_struct registers{};
  bool done = ::ptrace(PTRACE_GETREGS, tid, nullptr, &registers) == 0;
  if (done && registers.rax == kInterrupted && registers.rip == restart.old_ip) {
    apply(restart, registers);
    done = ::ptrace(PTRACE_SETREGS, tid, nullptr, &registers) == 0;
  }
  int error = errno;
  if (!tracing::detach(tid, *signal_number)) {
    if (done) error = errno;
    if (errno == ESRCH) tracing::reap({tid});
    done = false;
  }
  if (done) return {};
  return Error::from_errno(error, "cannot set the registers of thread " + std::to_string(tid));
}

}  // namespace

Result<bool> restart_interrupted_call(pid_t pid, pid_t tid, wire::Core& image) {
  if (image.machine() != kX86 || !image.thread().has_registers()) return false;
  const auto restart = plan_restart(pid, image.thread().registers());
  if (!restart || signal_is_due(pid, tid)) return false;
  wire::RegistersX86& registers = *image.mutable_thread()->mutable_registers();
  registers.set_ax(restart->call);
  registers.set_ip(restart->ip);
  registers.set_di(restart->di);
  registers.set_dx(restart->dx);
  GCR_TRY(restart_in_thread(tid, *restart));
  return true;
}

void make_again(pid_t pid, pid_t tid, user_regs_struct& registers) {
  if (registers.rax != kInterrupted || signal_is_due(pid, tid)) return;
  wire::RegistersX86 seen;
  seen.set_ax(registers.rax);
  seen.set_orig_ax(registers.orig_rax);
  seen.set_ip(registers.rip);
  seen.set_di(registers.rdi);
  seen.set_si(registers.rsi);
  seen.set_dx(registers.rdx);
  seen.set_r10(registers.r10);
  if (const auto restart = plan_restart(pid, seen)) apply(*restart, registers);
}

}  // namespace gcr::criu
