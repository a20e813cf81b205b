// A worker's control socket: how other workers of this host reach the one that owns a migration, to
// cancel it, to ask where it stands, or to bring a decision. It needs no daemon. worker_client.h
// has the other end.
//
// RUNTIME_DIR/workers/<uuid>-<role>, in a directory of mode 0700; SOCK_SEQPACKET, one message of
// proto/registry.proto per packet. The name is bound by whoever holds the journal's lock, in place
// of what a dead owner left.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <memory>
#include <string>

#include "migrate-agent/config/config.h"
#include "migrate-agent/journal/journal.h"
#include "migrate-agent/worker/cancellation.h"
#include "migrate-agent/worker/daemon_client.h"
#include "migrate-agent/worker/worker_client.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::agent {

/// What somebody else has decided about a migration that could not decide by itself.
struct Decision {
  /// Answers whoever brought it: done, or why not. At most one answer counts; a Decision that goes
  /// without one is answered with kUnavailable.
  void answer(const Status& status);

  bool run_here = false;   ///< this host's copy goes on; false: it is killed
  bool by_source = false;  ///< the source's agent says that it is committed; false: an operator
  std::string by;          ///< the common name of that agent's or operator's certificate

  struct Bringer;
  std::shared_ptr<Bringer> bringer;  ///< for answer()
};

/// What the source lets others see and change while its migration is under way. All methods belong
/// to the thread that runs the io_context.
class SourceControl {
 public:
  virtual ~SourceControl() = default;

  virtual proto::Progress progress() = 0;

  /// As ContinueRequest. kRefused where there is no pause to end.
  virtual Status go_on() = 0;

  /// As AdjustRequest. kRefused once nothing of it can be changed any more.
  virtual Status adjust(const registry::Adjust& wanted) = 0;
};

/// All methods belong to the thread that runs the io_context.
class WorkerServer {
 public:
  /// Cancel goes to `cancellation`; the phase is what was last told to `daemon`. All three outlive
  /// the server.
  WorkerServer(asio::io_context& io, const Config& config, Cancellation& cancellation,
               const DaemonClient& daemon);

  /// Closes every connection: whoever still waits for an answer learns that this worker is gone.
  /// Removes the socket unless a successor has the journal already.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  /// From now on this process is who others reach. The caller owns the journal. Once only; on
  /// failure nobody is reached.
  Status open(const Uuid& migration, journal::Role role);

  /// The next decision that is brought; those that come while nobody waits are kept as long as
  /// whoever brought them waits. May be cancelled; one waiter at a time.
  asio::awaitable<Decision> next_decision();

  /// From now on questions for progress and orders go to `control`, which stays the caller's; null:
  /// to nobody, orders are refused.
  void attach(SourceControl* control);

  /// For `status`: no protocol can go on by itself.
  void set_operator_needed(bool needed);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Takes away the socket that a dead worker left, unless somebody owns the journal. Blocks.
void remove_worker_socket(const Config& config, const WorkerAddress& address);

/// The same for every socket there is: those of workers that died after their daemon. Blocks.
void remove_dead_worker_sockets(const Config& config);

}  // namespace gcr::agent
