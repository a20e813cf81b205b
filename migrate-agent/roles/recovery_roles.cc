#include "migrate-agent/roles/recovery_roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/use_awaitable.hpp>

#include "src/base/log.h"

namespace gcr::agent {
namespace {

constexpr std::chrono::milliseconds kLongestRetryPause{5000};

}  // namespace

asio::awaitable<void> Backoff::wait() {
  timer_.expires_after(pause_);
  pause_ = std::min(2 * pause_, kLongestRetryPause);
  co_await timer_.async_wait(asio::use_awaitable);
}

std::filesystem::path scratch_of(const Config& config, const journal::Journal& journal) {
  return config.runtime_dir / "outgoing" / journal.migration().to_string();
}

cgroups::Group group_of(const journal::Journal& journal) {
  return {cgroups::hierarchies(), cgroups::kGroupPrefix + journal.path().filename().string()};
}

void remove_scratch(const Config& config, const journal::Journal& journal) {
  std::error_code error;
  std::filesystem::remove_all(scratch_of(config, journal), error);
  if (error) spdlog::warn("images of a migration stay behind: {}", error.message());
}

bool host_was_restarted(const journal::Began& began) {
  const auto now = journal::boot_id();
  return now && *now != began.boot_id();
}

asio::awaitable<Status> run_recovery(RecoveryContext& context, std::filesystem::path path) {
  const bool source = path.filename().string().ends_with("-source");
  if (source) {
    auto log = co_await offload(
        context.blocking, [&] { return commit::SourceLog::open(path, journal::Lock::kWait); });
    GCR_CO_TRY(log);
    if (!journal::unfinished(log->journal().records())) co_return Status();
    GCR_CO_TRY(context.line.open(log->journal().migration(), journal::Began::SOURCE));
    co_return co_await recover_source(context, std::move(*log));
  }
  auto log = co_await offload(
      context.blocking, [&] { return commit::DestinationLog::open(path, journal::Lock::kWait); });
  GCR_CO_TRY(log);
  if (!journal::unfinished(log->journal().records())) co_return Status();
  GCR_CO_TRY(context.line.open(log->journal().migration(), journal::Began::DESTINATION));
  co_return co_await recover_destination(context, std::move(*log));
}

}  // namespace gcr::agent
