// A worker's control socket. Other workers of this host use it to reach the worker that owns a
// migration: to cancel it, to read its status, or to deliver a decision. It needs no daemon.
// worker_client.h is the other end.
//
// The socket is RUNTIME_DIR/workers/<uuid>-<role>, in a directory of mode 0700; SOCK_SEQPACKET, one
// message of proto/registry.proto per packet. The process that holds the journal's lock binds the
// name and replaces the socket of a dead owner.
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
  /// Replies to the requester: success, or the reason of the failure. Only the first reply counts;
  /// a Decision that is destroyed without one replies kUnavailable.
  void answer(const Status& status);

  bool run_here = false;  ///< this host's copy runs; false: it is killed
  bool by_source =
      false;       ///< from the source's agent, which has committed; false: from an operator
  std::string by;  ///< the common name of that agent's or operator's certificate

  struct Requester;
  std::shared_ptr<Requester> requester;  ///< for answer()
};

/// Access to a running migration at its source, for other workers. All methods belong to the thread
/// that runs the io_context.
class SourceControl {
 public:
  virtual ~SourceControl() = default;

  virtual proto::Progress progress() = 0;

  /// Handles ContinueRequest. kRefused if the migration is not paused.
  virtual Status go_on() = 0;

  /// Changes values that check_adjustment() accepts. kRefused once the switchover has begun.
  virtual Status adjust(const proto::AdjustRequest& wanted) = 0;
};

/// Checks an AdjustRequest. kInvalidArgument if it changes nothing or a value is out of range.
Status check_adjustment(const proto::AdjustRequest& wanted);

/// The control socket. All methods belong to the thread that runs the io_context.
class WorkerServer {
 public:
  /// A cancel request goes to `cancellation`; the phase in the status is the last one reported to
  /// `daemon`. All arguments must outlive the server.
  WorkerServer(asio::io_context& io, const Config& config, Cancellation& cancellation,
               const DaemonClient& daemon);

  /// Closes every connection: clients that still wait learn that this worker is gone. Removes the
  /// socket unless a successor already owns the journal.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  /// Opens the socket. The caller owns the journal. Call it once; on failure this process cannot be
  /// reached.
  Status open(const Uuid& migration, journal::Role role);

  /// Returns the next decision. Decisions that arrive early are kept while their requester waits.
  /// Can be cancelled, and then returns an empty Decision; one caller at a time.
  asio::awaitable<Decision> next_decision();

  /// Directs queries for progress and orders to `control`, which stays the caller's. With null,
  /// orders are refused.
  void attach(SourceControl* control);

  /// Sets whether `status` reports that the migration needs an operator's decision.
  void set_operator_needed(bool needed);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Removes the socket of a dead worker, unless the journal has an owner. Blocks.
void remove_worker_socket(const Config& config, const WorkerAddress& address);

/// Removes the sockets of all dead workers: those that died after their daemon. Blocks.
void remove_dead_worker_sockets(const Config& config);

}  // namespace gcr::worker
