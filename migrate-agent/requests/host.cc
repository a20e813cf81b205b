// The query about a host before processes are moved to it or away from it.
#include <algorithm>

#include "migrate-agent/host/host_state.h"
#include "migrate-agent/requests/requests.h"

namespace gcr::agent {
namespace {

using Migrations = google::protobuf::RepeatedPtrField<proto::MigrationStatus>;

/// A process that is being restored here: until the vote its migration's journal does not name it.
bool is_arriving(const host::FoundProcess& found, const Migrations& migrations) {
  return found.in_use && std::ranges::any_of(migrations, [](const auto& migration) {
           return migration.role() == "destination" && migration.pid() == 0;
         });
}

/// The processes that the asker may move, with the migration that each is in by the journals.
void add_processes(proto::HostReply& reply, std::vector<host::FoundProcess> found,
                   const Permissions& permissions) {
  for (host::FoundProcess& one : found) {
    if (!permissions.may_move(one.process.uid())) continue;
    const auto migration =
        std::ranges::find(reply.migrations(), one.process.pid(), &proto::MigrationStatus::pid);
    const bool moves = migration != reply.migrations().end();
    if (!moves && is_arriving(one, reply.migrations())) continue;
    if (moves) one.process.set_migration_id(migration->migration_id());
    *reply.add_processes() = std::move(one.process);
  }
}

}  // namespace

Reply answer_host(WorkerContext& context) {
  proto::Envelope reply;
  proto::HostReply& host = *reply.mutable_host_reply();
  GCR_ASSIGN(*host.mutable_host(), host::offer(context.config));
  const auto& gpus = host.host().gpus();
  auto found = host::processes({gpus.begin(), gpus.end()});
  // Afterwards: a migration that had a door during the query has a journal by now.
  GCR_ASSIGN(proto::Envelope listed, answer_list(context, {}));
  *host.mutable_migrations() = std::move(*listed.mutable_list_reply()->mutable_migrations());
  add_processes(host, std::move(found), context.permissions);
  host.set_max_migrations(context.config.max_migrations);
  host.set_load(host::load_per_core());
  return reply;
}

}  // namespace gcr::agent
