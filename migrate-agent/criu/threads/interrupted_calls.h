// A thread notices that CRIU interrupted it: a waiting call that the kernel cannot restart from
// registers alone (a sleep, poll, or futex with a time limit; epoll_wait) is dumped, and resumed,
// as failed with EINTR. Programs that do not expect this would fail because they were moved.
//
// After a dump the registers of such threads are set back to before the call, in the images and in
// the stopped process, so that the call is made again. Time limits start again; clock_nanosleep and
// nanosleep continue with the remaining time if the program asked for it. A call that was stopped
// and continued before the dump can only be made again if the code before it tells which call it
// is; C libraries' functions do, syscall(2) itself does not.
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "src/base/result.h"

namespace gcr::criu {

/// Of a thread that was just dumped and is stopped: sets the registers in it and in its image. True
/// if they had to be set. A thread with a pending signal keeps its EINTR: the signal caused it. On
/// failure the thread may be left with its EINTR. Any thread of ours.
Result<bool> restart_interrupted_call(pid_t pid, pid_t tid, wire::Core& image);

/// The same for a thread that a tracer has stopped, in the registers that it will get.
void make_again(pid_t pid, pid_t tid, user_regs_struct& registers);

}  // namespace gcr::criu
