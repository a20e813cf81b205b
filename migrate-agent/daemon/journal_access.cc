#include "migrate-agent/daemon/journal_access.h"

#include <fmt/format.h>

#include <asio/steady_timer.hpp>

namespace gcr::agent {
namespace {

constexpr std::chrono::milliseconds kPause = std::chrono::milliseconds(50);

}  // namespace

asio::awaitable<Result<KnownJournal>> read_journal(WorkerContext& context, Uuid migration,
                                                   journal::Role role) {
  KnownJournal known;
  known.entry = journal_entry(context.config.state_dir, migration, role);
  const Status read = co_await offload(context.blocking, [&]() -> Status {
    GCR_ASSIGN(known.contents, journal::read_durable(known.entry.path));
    GCR_ASSIGN(known.state, state_of(known.entry, known.contents));
    return {};
  });
  if (!read && read.error().code() == Code::kNotFound) {
    co_return Error(Code::kNotFound, fmt::format("this agent knows no migration {} as its {}",
                                                 migration.to_string(), journal::to_string(role)));
  }
  GCR_CO_TRY(read);
  co_return known;
}

asio::awaitable<Status> check_permission(WorkerContext& context, Uuid migration) {
  if (context.permissions.everyone()) co_return Status();
  for (const journal::Role role : {journal::Began::SOURCE, journal::Began::DESTINATION}) {
    const auto known = co_await read_journal(context, migration, role);
    if (!known && known.error().code() == Code::kNotFound) continue;
    if (!known) {
      co_return Error(Code::kPermissionDenied,
                      fmt::format("the journal of migration {} does not name its user ({}): only "
                                  "those who may move everybody's processes have access",
                                  migration.to_string(), known.error().message()));
    }
    GCR_CO_TRY(context.permissions.check(known->began().uid()));
  }
  co_return Status();
}

asio::awaitable<void> pause_before_next_look(WorkerContext& context) {
  asio::steady_timer timer(context.io, kPause);
  co_await timer.async_wait(asio::use_awaitable);
}

}  // namespace gcr::agent
