// Dumps and restores in one call, without a prepared session, and the end of the dumped processes.
#pragma once

#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/process/inspect/credentials.h"

namespace gcr::criu {

/// A TakeImage that writes files into `directory`.
inline TakeImage to_files(const std::filesystem::path& directory) {
  return [directory](const std::string& name, UniqueFd content) -> Status {
    std::ofstream out(directory / name, std::ios::binary);
    char bytes[65536];
    ssize_t got = 0;
    while ((got = ::read(content.get(), bytes, sizeof(bytes))) > 0) out.write(bytes, got);
    return {};
  };
}

/// PreparedDump::create() and run() in one: everything goes through CRIU, into files.
inline Result<std::vector<process::ThreadRights>> dump(const Command& command, pid_t pid,
                                                       const std::filesystem::path& directory,
                                                       const DumpOptions& options = {}) {
  GCR_ASSIGN(PreparedDump prepared, PreparedDump::create(command, pid, directory, options));
  return prepared.run(to_files(directory));
}

/// The caller's own rights for all processes of the images; none if the images are incomplete.
inline Rights own_rights(const std::filesystem::path& directory) {
  Rights rights;
  const auto own = process::read_credentials(::getpid());
  const auto used = images::used_pids(directory);
  if (!own || !used) return rights;
  for (const pid_t pid : *used) rights[pid] = own->front().rights;
  return rights;
}

/// PreparedRestore::create() and run() in one.
inline Result<RestoredTree> restore(const Command& command, const std::filesystem::path& directory,
                                    const Rights& members, RestoreOptions options = {}) {
  const auto first = directory / "inventory.img";
  GCR_ASSIGN(const std::set<pid_t> used, images::used_pids(directory));
  GCR_ASSIGN(const std::string inventory, images::read_file(first));
  auto prepared = PreparedRestore::create(command, directory, used, std::move(options));
  // The holding point needs its name, and the file is part of the images in any case.
  GCR_TRY(images::write_file(first, inventory));
  if (!prepared) return prepared.error();
  return prepared->run(members);
}

/// With the caller's own rights.
inline Result<RestoredTree> restore(const Command& command, const std::filesystem::path& directory,
                                    RestoreOptions options = {}) {
  return restore(command, directory, own_rights(directory), std::move(options));
}

/// Sends SIGKILL to the dumped tree, and waits until all of it has ended. Success if it has ended
/// already.
inline Status kill_stopped(const procfs::Process& process) {
  const std::vector<procfs::Process> tasks = procfs::open_tree(process);
  for (const procfs::Process& task : tasks) {
    const Status sent = task.send(SIGKILL);
    if (!sent && sent.error().code() != Code::kNotFound) return sent;
  }
  for (const procfs::Process& task : tasks) GCR_TRY(task.wait_until_ended());
  return {};
}

}  // namespace gcr::criu
