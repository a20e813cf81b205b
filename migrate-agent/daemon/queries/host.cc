// The query about a host: its resources, processes and migrations.
#include <algorithm>
#include <set>

#include "migrate-agent/daemon/queries/requests.h"
#include "migrate-agent/preflight/inventory/host_state.h"

namespace gcr::daemon {
namespace {

using Migrations = google::protobuf::RepeatedPtrField<proto::MigrationStatus>;

/// Returns whether a process is being restored here: until the vote its migration's journal does
/// not name it.
bool is_arriving(const inventory::FoundProcess& found, const Migrations& migrations) {
  return found.in_use && std::ranges::any_of(migrations, [](const auto& migration) {
           return migration.role() == "destination" && migration.pid() == 0;
         });
}

const proto::MigrationStatus kNoMigration;

/// Returns the migration that has one of these processes, by the journals.
const proto::MigrationStatus& migration_of(const std::set<pid_t>& pids,
                                           const Migrations& migrations) {
  for (const proto::MigrationStatus& migration : migrations) {
    const auto is_one = [&](pid_t member) { return pids.contains(member); };
    if (std::ranges::any_of(migration.members(), is_one)) return migration;
  }
  return kNoMigration;
}

/// Returns whether the job's root has ended, and so the migration ends the other processes.
bool is_ending(const proto::MigrationStatus& migration) {
  return !migration.members().empty() && migration.pid() == 0;
}

/// Adds the processes that the caller may move, with the migration that each is in, and the jobs of
/// which the caller may move all processes.
void add_processes(proto::HostReply& reply, std::vector<inventory::FoundProcess> found,
                   const worker::Permissions& permissions) {
  std::vector<inventory::FoundJob> jobs = inventory::jobs(found);
  std::set<pid_t> roots;
  for (inventory::FoundProcess& one : found) {
    if (!permissions.may_move(one.process.uid())) continue;
    one.process.set_migration_id(migration_of(one.lineage, reply.migrations()).migration_id());
    const bool moves = !one.process.migration_id().empty();
    if (!moves && is_arriving(one, reply.migrations())) continue;
    roots.insert(one.process.job());
    *reply.add_processes() = std::move(one.process);
  }
  for (inventory::FoundJob& one : jobs) {
    const auto may_move = [&](uid_t owner) { return permissions.may_move(owner); };
    if (!roots.contains(one.job.pid()) || !std::ranges::all_of(one.owners, may_move)) continue;
    const auto& migration = migration_of(one.members, reply.migrations());
    if (is_ending(migration)) continue;
    one.job.set_migration_id(migration.migration_id());
    *reply.add_jobs() = std::move(one.job);
  }
}

}  // namespace

Reply answer_host(worker::WorkerContext& context) {
  proto::Envelope reply;
  proto::HostReply& host = *reply.mutable_host_reply();
  GCR_ASSIGN(*host.mutable_host(), inventory::offer(context.config));
  const auto& gpus = host.host().gpus();
  auto found = inventory::processes({gpus.begin(), gpus.end()});
  // Read the migrations last: a migration that used a door during the query has a journal by now.
  GCR_ASSIGN(proto::Envelope listed, answer_list(context, {}));
  *host.mutable_migrations() = std::move(*listed.mutable_list_reply()->mutable_migrations());
  add_processes(host, std::move(found), context.permissions);
  host.set_max_migrations(context.config.max_migrations);
  host.set_load(inventory::load_per_core());
  return reply;
}

}  // namespace gcr::daemon
