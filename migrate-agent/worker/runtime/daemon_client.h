// A worker's connection to its daemon: it claims processes, receives data connections and reports
// the migration's phase and outcome. The daemon releases all claims when the worker ends, however
// it ends.
//
// All methods belong to the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "migrate-agent/commit/journal/journal.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/uuid.h"
#include "src/control/control_channel.h"

namespace gcr::worker {

/// Phase of a migration that waits for its operator. A stopping daemon does not wait for it.
inline constexpr std::string_view kPausedPhase = "paused";

class DaemonClient {
 public:
  /// Takes the worker's end of the SOCK_SEQPACKET pair. Reading starts at once and continues until
  /// the client is destroyed or the daemon ends.
  DaemonClient(asio::io_context& io, UniqueFd socket);
  ~DaemonClient();
  DaemonClient(const DaemonClient&) = delete;
  DaemonClient& operator=(const DaemonClient&) = delete;

  /// Reports that the peer has shown a valid certificate or is a local user: the connection then
  /// counts for that peer instead of as a startup. kResourceExhausted if the peer has too many;
  /// kUnavailable if the daemon is gone.
  asio::awaitable<Status> admit(const control::PeerIdentity& peer);

  /// Claims the processes on this host for this worker until it ends: all of them or none.
  /// kRefused, naming the other migration, if another worker has one; kResourceExhausted if this
  /// host, or the user who ordered the migration, has too many migrations; kUnavailable if the
  /// daemon is gone.
  asio::awaitable<Status> claim_processes(Uuid migration, journal::ProcessIds processes,
                                          const std::string& ordered_by);

  /// Claims a suspended job for this worker until it ends. kRefused if another worker resumes it.
  asio::awaitable<Status> take_suspended(Uuid migration, const std::string& ordered_by);

  /// Directs data connections whose preface names `migration` to this worker. kRefused if another
  /// worker has registered it; kResourceExhausted like claim_processes().
  asio::awaitable<Status> register_migration(Uuid migration, const std::string& ordered_by);

  /// Returns the result that claim_processes() (for a source, with its `processes`) or
  /// register_migration() would have now; claims nothing.
  asio::awaitable<Status> check_admission(journal::Role role, const std::string& ordered_by,
                                          journal::ProcessIds processes = {});

  /// Sets the handler of data connections, which runs on this thread. It gets connected TCP sockets
  /// in blocking mode, close-on-exec, of which exactly the preface has been read; the peer is not
  /// authenticated. Without a handler connections are closed.
  void on_data_connection(std::function<void(UniqueFd)> handler);

  /// Reports the migration's phase, for `list` and the log. Lost if the daemon is gone.
  void report_phase(std::string_view phase);

  /// Reports how the migration ended, for the log and the metrics, without its rounds. Lost if the
  /// daemon is gone.
  void report_outcome(registry::Outcome outcome);

  /// Returns the value of report_outcome(); none before it.
  const std::optional<registry::Outcome>& outcome() const;

  /// Returns the last value of report_phase(); empty before it.
  const std::string& phase() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace gcr::worker
