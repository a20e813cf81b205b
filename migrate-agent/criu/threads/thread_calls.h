// System calls that a tracer makes a thread do, for what only the thread itself can ask or set.
//
// The thread's registers are set to a system call of the vDSO, one call after the other, and put
// back at the end. Filters for system calls are suspended meanwhile (PTRACE_O_SUSPEND_SECCOMP), and
// signals wait. A call that was interrupted goes on afterwards, or is made again. A tracer that
// dies in between leaves wrong registers: trace from a process that is not ended (apart.h).
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// A call by its number, and its arguments.
struct ThreadCall {
  /// As an argument: the address of the bytes that go with the call; kBytes + 8: of the ninth.
  static constexpr std::uint64_t kBytes = 0xb17e'5000'0000'0000;

  long number = 0;
  std::array<std::uint64_t, 6> arguments{};

  /// With `address` for kBytes.
  ThreadCall with_bytes_at(std::uint64_t address, std::size_t bytes) const;
};

/// Where the threads of a process make their calls, looked for once for all of them: a process may
/// have thousands of mappings. If it runs and takes its vDSO away meanwhile, calls fail.
struct CallSite {
  /// kNotFound if the process has ended.
  static Result<std::shared_ptr<const CallSite>> find(pid_t pid);

  pid_t pid;
  UniqueFd memory;
  std::uint64_t instruction;  ///< a system call; 0 if the process has no vDSO
};

/// One traced thread. Belongs to the thread that made it. x86-64 only.
class ThreadCalls {
 public:
  /// Attaches to a thread, running or stopped. kNotFound if it has ended, kPermissionDenied if
  /// another process traces it. `seccomp`: whether filters may forbid it calls.
  static Result<std::unique_ptr<ThreadCalls>> seize(std::shared_ptr<const CallSite> site, pid_t tid,
                                                    bool seccomp);

  /// Waits until it has stopped for the tracer. Once, before anything else; if it was frozen, it
  /// has to be thawed before the first call. kNotFound if it has ended, kTimeout if it does not
  /// stop in time: then it is let go at the end of this process (apart.h).
  Status wait_until_stopped();

  ThreadCalls(const ThreadCalls&) = delete;
  ThreadCalls& operator=(const ThreadCalls&) = delete;
  /// As let_go(), without an error.
  ~ThreadCalls() { (void)let_go(); }

  /// False for a thread that runs 32-bit code or has no vDSO: it can only be held.
  bool can_call() const { return kept_; }

  /// What the kernel returns: -EPERM as -EPERM. An error only if the thread could not make it, or
  /// made another one: its code was changed. `bytes` are in the thread's memory, for both ways.
  Result<std::int64_t> call(const ThreadCall& call, std::span<std::byte> bytes = {});

  /// A call of one thread, and what the kernel returned.
  struct Made {
    ThreadCalls* thread;
    ThreadCall call;
    std::span<std::byte> bytes{};
    std::int64_t result = 0;
  };

  /// As call() for each, but they run at the same time: no two of one thread.
  static Status call_all(std::span<Made> calls);

  /// The thread's extended state (extended_state.h), as long as this kernel has it. Setting it
  /// takes the same number of bytes.
  Result<std::vector<std::byte>> read_state() const;
  Status write_state(std::span<const std::byte> state);

  /// Executes instructions of the thread's own mode, which must not fault.
  Status execute(std::span<const std::byte> instructions);

  /// Puts the registers back and detaches. A stop that was in force stays so. Once.
  Status let_go();

 private:
  ThreadCalls(std::shared_ptr<const CallSite> site, pid_t tid)
      : site_(std::move(site)), tid_(tid) {}

  Status prepare();
  Status begin(std::uint64_t address, const ThreadCall& call);
  Status go_to_call_stop(int deliver = 0) const;
  Status wait_for_call_stop();
  Status finish_call();
  Result<std::int64_t> result_of(const ThreadCall& call) const;
  Result<std::int64_t> make_at(std::uint64_t address, const ThreadCall& call);
  Status lend(std::span<const std::byte> bytes);
  Status take_back(std::span<std::byte> bytes);
  Status put_back_stack();
  off_t address_of(std::size_t bytes) const;
  Error cannot(const char* what) const;

  const std::shared_ptr<const CallSite> site_;
  const pid_t tid_;
  user_regs_struct saved_{};
  std::uint64_t blocked_ = 0;
  bool attached_ = false;
  bool kept_ = false;            ///< `saved_` is true
  bool changed_ = false;         ///< signals are blocked
  int stops_left_ = 0;           ///< until the call that the thread makes is done
  std::vector<std::byte> lent_;  ///< what was where the bytes of a call are
};

}  // namespace gcr::criu
