// A worker's control socket: other workers of this host use it to reach the one that owns a
// migration, to cancel it, to ask for its status, or to deliver a decision. It needs no daemon.
// worker_client.h has the other end.
//
// RUNTIME_DIR/workers/<uuid>-<role>, in a directory of mode 0700; SOCK_SEQPACKET, one message of
// proto/registry.proto per packet. The process that holds the journal's lock binds the name, and
// replaces what a dead owner left.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <memory>
#include <string>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/worker/config/config.h"
#include "migrate-agent/worker/runtime/cancellation.h"
#include "migrate-agent/worker/runtime/daemon_client.h"
#include "migrate-agent/worker/runtime/worker_client.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::worker {

/// A decision from outside about a migration that cannot decide by itself.
struct Decision {
  /// Answers the requester: done, or why not. Only the first answer counts; a Decision that is
  /// destroyed without one is answered with kUnavailable.
  void answer(const Status& status);

  bool run_here = false;  ///< this host's copy runs; false: it is killed
  bool by_source =
      false;       ///< from the source's agent, which has committed; false: from an operator
  std::string by;  ///< the common name of that agent's or operator's certificate

  struct Bringer;
  std::shared_ptr<Bringer> bringer;  ///< for answer()
};

/// What others may see and change at the source while its migration is under way. All methods
/// belong to the thread that runs the io_context.
class SourceControl {
 public:
  virtual ~SourceControl() = default;

  virtual proto::Progress progress() = 0;

  /// For ContinueRequest. kRefused if there is no pause to end.
  virtual Status go_on() = 0;

  /// What check_adjustment() accepts. kRefused once the switchover has begun.
  virtual Status adjust(const proto::AdjustRequest& wanted) = 0;
};

/// kInvalidArgument if nothing would change, or if a value is out of range.
Status check_adjustment(const proto::AdjustRequest& wanted);

/// All methods belong to the thread that runs the io_context.
class WorkerServer {
 public:
  /// A cancel goes to `cancellation`; the phase is the last one reported to `daemon`. All arguments
  /// outlive the server.
  WorkerServer(asio::io_context& io, const Config& config, Cancellation& cancellation,
               const DaemonClient& daemon);

  /// Closes every connection: clients that still wait learn that this worker is gone. Removes the
  /// socket unless a successor has the journal already.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  /// From now on others reach this process. The caller owns the journal. Call once; on failure
  /// others reach nobody.
  Status open(const Uuid& migration, journal::Role role);

  /// The next decision. Decisions that arrive early are kept while their requester waits. May be
  /// cancelled, and returns an empty Decision then; one caller at a time.
  asio::awaitable<Decision> next_decision();

  /// From now on queries for progress and orders go to `control`, which stays the caller's. Null:
  /// to nobody, and orders are refused.
  void attach(SourceControl* control);

  /// For `status`: the migration cannot go on without an operator's decision.
  void set_operator_needed(bool needed);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Removes the socket that a dead worker left, unless the journal has an owner. Blocks.
void remove_worker_socket(const Config& config, const WorkerAddress& address);

/// The same for all sockets: those of workers that died after their daemon. Blocks.
void remove_dead_worker_sockets(const Config& config);

}  // namespace gcr::worker
