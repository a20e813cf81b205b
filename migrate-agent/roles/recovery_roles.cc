#include "migrate-agent/roles/recovery_roles.h"

namespace gcr::agent {

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
