#include "preload/door.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <new>

#include "preload/descriptors.h"
#include "preload/door_protocol.h"
#include "preload/gate.h"
#include "preload/log.h"
#include "preload/pages.h"
#include "preload/quiet_thread.h"
#include "preload/runtime.h"
#include "src/base/unique_fd.h"

namespace gcr::preload {
namespace {

/// The door's descriptors, which stay open as long as the process lives.
struct Door {
  std::atomic<bool> started{false};
  std::atomic<std::int32_t> thread_id{0};
  int own_fd = -1;
  int agent_fd = -1;
  int card_fd = -1;
};
constinit Door g_door;

/// Creates a sealed memfd with the card; empty on failure.
UniqueFd make_card(int agent_fd) {
  UniqueFd card(::memfd_create(door::kMemfdName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!card) return UniqueFd();
  const door::DoorCard content{door::kMagic, door::kVersion, agent_fd, ::getpid(), 0};
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
  if (::write(card.get(), &content, sizeof(content)) != sizeof(content) ||
      ::fcntl(card.get(), F_ADD_SEALS, kSeals) != 0) {
    return UniqueFd();
  }
  return UniqueFd(move_high(card.release()));
}

void close_door() {
  UniqueFd own(g_door.own_fd), agent(g_door.agent_fd), card(g_door.card_fd);
  g_door.own_fd = g_door.agent_fd = g_door.card_fd = -1;
}

void* door_thread(void*) {
  gate::exempt_this_thread();
  pages::note_own_stack();
  g_door.thread_id.store(::gettid());
  serve_door(g_door.own_fd);
  return nullptr;
}

// A fork waits at a closed gate and holds all mutexes, so the child sees a consistent state. The
// child then releases what it must not keep and has no door; if its parent has not used a GPU, it
// may create one of its own later. vfork and posix_spawn run no fork handlers and need none: exec
// removes the mappings and closes the descriptors.
alignas(GateScope) constinit thread_local unsigned char t_fork_scope[sizeof(GateScope)] = {};

GateScope* fork_scope() { return std::launder(reinterpret_cast<GateScope*>(t_fork_scope)); }

void before_fork() {
  new (t_fork_scope) GateScope;
  runtime::before_fork();
}

void after_fork_in_parent() {
  runtime::after_fork_in_parent();
  fork_scope()->~GateScope();
}

void after_fork_in_child() {
  close_door();
  g_door.thread_id.store(0);
  g_door.started.store(runtime::after_fork_in_child());
  gate::reset_after_fork();
  fork_scope()->~GateScope();
}

bool open_door() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  UniqueFd own(move_high(ends[0]));
  UniqueFd agent(move_high(ends[1]));
  UniqueFd card = make_card(agent.get());
  if (!card) return false;
  g_door.own_fd = own.release();
  g_door.agent_fd = agent.release();
  g_door.card_fd = card.release();
  return true;
}

}  // namespace

bool start_door() {
  if (g_door.started.exchange(true)) return true;
  gate::prepare();
  static const int registered =
      ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  pthread_t thread;
  if (registered == 0 && open_door()) {
    if (start_quiet_thread("gcr-door", door_thread, nullptr, &thread)) {
      ::pthread_detach(thread);
      return true;
    }
    close_door();
  }
  log_line("cannot create the door: no descriptors, memory or threads left");
  g_door.started.store(false);
  return false;
}

std::int32_t door_thread_id() { return g_door.thread_id.load(); }

}  // namespace gcr::preload
