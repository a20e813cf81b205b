// What the recoveries of both roles share. recovery_source.cc and recovery_destination.cc have
// their courses; roles.h has the entry point.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/steady_timer.hpp>
#include <filesystem>

#include "migrate-agent/cgroups/group.h"
#include "migrate-agent/commit/commit_log.h"
#include "migrate-agent/roles/records.h"
#include "migrate-agent/roles/roles.h"

namespace gcr::agent {

/// Pauses between attempts, each twice as long as the one before, up to a limit.
class Backoff {
 public:
  explicit Backoff(asio::io_context& io) : timer_(io) {}
  asio::awaitable<void> wait();

 private:
  asio::steady_timer timer_;
  std::chrono::milliseconds pause_{100};
};

/// Where a source keeps what CRIU writes. A destination's images have no name in the file system
/// and end with the worker.
std::filesystem::path scratch_of(const Config& config, const journal::Journal& journal);

/// The control group of the migration's process on this host, whether it exists or not.
cgroups::Group group_of(const journal::Journal& journal);

void remove_scratch(const Config& config, const journal::Journal& journal);

/// Whether the host was restarted since the migration began: then all its processes are gone.
bool host_was_restarted(const journal::Began& began);

asio::awaitable<Status> recover_source(RecoveryContext& context, commit::SourceLog log);
asio::awaitable<Status> recover_destination(RecoveryContext& context, commit::DestinationLog log);

}  // namespace gcr::agent
