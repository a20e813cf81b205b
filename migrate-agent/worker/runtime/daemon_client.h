// A worker's line to its daemon: claims of processes, data connections, and what the daemon reports
// about the migration. The daemon releases everything when the worker ends, however it ends.
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

/// The phase of a migration that waits for its operator. A daemon that stops does not wait for it.
inline constexpr std::string_view kPausedPhase = "paused";

class DaemonClient {
 public:
  /// Takes the worker's end of the SOCK_SEQPACKET pair. Reading starts at once and goes on until
  /// the client is destroyed or the daemon ends.
  DaemonClient(asio::io_context& io, UniqueFd socket);
  ~DaemonClient();
  DaemonClient(const DaemonClient&) = delete;
  DaemonClient& operator=(const DaemonClient&) = delete;

  /// Reports that the peer has shown a valid certificate, or is a local user: the connection no
  /// longer counts as a startup, but for that peer. kResourceExhausted if it has too many;
  /// kUnavailable if the daemon is gone.
  asio::awaitable<Status> admit(const control::PeerIdentity& peer);

  /// Reserves the processes on this host for this worker until it ends: all of them or none.
  /// kRefused, naming the other migration, if another worker has one; kResourceExhausted if this
  /// host, or the user who ordered it, has too many migrations; kUnavailable if the daemon is gone.
  asio::awaitable<Status> claim_processes(Uuid migration, journal::ProcessIds processes,
                                          std::string ordered_by);

  /// A suspended job belongs to this worker until it ends. kRefused if another one resumes it.
  asio::awaitable<Status> take_suspended(Uuid migration, std::string ordered_by);

  /// From now on data connections whose preface names `migration` come to this worker. kRefused if
  /// another worker registered it; kResourceExhausted as above.
  asio::awaitable<Status> register_migration(Uuid migration, std::string ordered_by);

  /// What these two would answer now; nothing is claimed. `processes` are the source's.
  asio::awaitable<Status> ask_room(journal::Role role, std::string ordered_by,
                                   journal::ProcessIds processes = {});

  /// Who takes data connections, on this thread: connected TCP sockets in blocking mode,
  /// close-on-exec, of which exactly the preface has been read. The peer has proven nothing yet.
  /// While there is no taker, connections are closed.
  void on_data_connection(std::function<void(UniqueFd)> taker);

  /// The migration's phase, for `list` and the log. Lost if the daemon is gone.
  void report_phase(std::string_view phase);

  /// How it ended, for the log and the metrics, without rounds. Lost if the daemon is gone.
  void report_outcome(registry::Outcome outcome);

  /// The value of report_outcome(); nothing before it.
  const std::optional<registry::Outcome>& outcome() const;

  /// The last value of report_phase(); empty before it.
  const std::string& phase() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace gcr::worker
