// Journals for tests.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/commit/states/commit_log.h"

namespace gcr::daemon::test {

/// The process that a recovered destination reports as running.
inline constexpr int kRestoredPid = 4242;

inline void must(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message());
}

inline journal::Record aborted(const Error& cause) {
  journal::Record record;
  record.mutable_aborted()->set_code(std::string(to_string(cause.code())));
  record.mutable_aborted()->set_message(cause.message());
  return record;
}

inline journal::Record finished(const std::string& text, int pid = 0) {
  journal::Record record;
  record.mutable_finished()->set_text(text);
  record.mutable_finished()->set_pid(pid);
  return record;
}

inline journal::Record resolved(bool run_here, const std::string& by) {
  journal::Record record;
  record.mutable_resolved()->set_run_here(run_here);
  record.mutable_resolved()->set_operator_name(by);
  return record;
}

inline journal::Record committed() {
  journal::Record record;
  record.mutable_committed();
  return record;
}

/// The Began record of a test's journal.
struct Beginning {
  std::string peer = "127.0.0.1:1";  ///< no agent listens there
  std::string peer_name = "peer";
  std::string command = "python3 serve.py";
  int pid = 1;  ///< of the source's process
  std::uint64_t start_time = 1;
  unsigned uid = 0;  ///< the owner of the process
  std::string ordered_by = "operator";
  std::string boot_id = {};  ///< of another boot than this one
};

inline journal::Began began_of(const Beginning& beginning) {
  journal::Began began;
  began.set_peer(beginning.peer);
  began.set_peer_name(beginning.peer_name);
  began.set_command(beginning.command);
  began.add_members()->set_pid(beginning.pid);
  began.mutable_members(0)->set_start_time(beginning.start_time);
  began.set_uid(beginning.uid);
  began.set_ordered_by(beginning.ordered_by);
  began.set_boot_id(beginning.boot_id);
  return began;
}

/// Writes the journal of a source that has reached `state`, and releases it.
inline Uuid write_source(const std::filesystem::path& state_dir, commit::SourceState state,
                         const Beginning& beginning = {}, const Uuid& id = Uuid::random()) {
  using commit::SourceEvent;
  using commit::SourceState;
  auto log = commit::SourceLog::create(state_dir, id, began_of(beginning));
  if (!log) throw std::runtime_error(log.error().message());
  if (state == SourceState::kWorking) return id;
  if (state == SourceState::kAborted || state == SourceState::kUndone) {
    must(log->advance(SourceEvent::kFailed, aborted(Error(Code::kTimeout, "too slow"))));
    if (state == SourceState::kAborted) return id;
    must(log->advance(SourceEvent::kRolledBack, finished("the process runs here")));
    return id;
  }
  if (state == SourceState::kSuspended) {
    journal::Record suspended;
    suspended.mutable_suspended();
    must(log->advance(SourceEvent::kSuspended, suspended));
    return id;
  }
  journal::Record awaiting;
  awaiting.mutable_awaiting();
  must(log->advance(SourceEvent::kAskRestore, awaiting));
  if (state == SourceState::kAwaiting) return id;
  must(log->advance(SourceEvent::kVoteReceived, committed()));
  if (state == SourceState::kCommitted) return id;
  must(log->advance(SourceEvent::kCommitConfirmed, finished("process 9 runs there")));
  return id;
}

/// The same of a destination.
inline Uuid write_destination(const std::filesystem::path& state_dir,
                              commit::DestinationState state, const Beginning& beginning = {},
                              const Uuid& id = Uuid::random()) {
  using commit::DestinationEvent;
  using commit::DestinationState;
  auto log = commit::DestinationLog::create(state_dir, id, began_of(beginning));
  if (!log) throw std::runtime_error(log.error().message());
  if (state == DestinationState::kBuilding) return id;
  if (state == DestinationState::kAborted || state == DestinationState::kGone) {
    must(log->advance(DestinationEvent::kFailed, aborted(Error(Code::kIo, "no room"))));
    if (state == DestinationState::kAborted) return id;
    must(log->advance(DestinationEvent::kCleared, finished("nothing is left")));
    return id;
  }
  journal::Record restored;
  restored.mutable_restored()->add_members()->set_pid(kRestoredPid);
  must(log->advance(DestinationEvent::kRestored, restored));
  if (state == DestinationState::kRestored) return id;
  must(log->advance(DestinationEvent::kToldCommit, committed()));
  if (state == DestinationState::kCommitted) return id;
  must(log->advance(DestinationEvent::kResumed, finished("the process runs", kRestoredPid)));
  return id;
}

/// The same of a source that was undone, at once and not necessarily synced to disk.
inline void write_undone_quickly(const std::filesystem::path& state_dir,
                                 const Beginning& beginning = {}) {
  const Uuid id = Uuid::random();
  journal::Record began;
  *began.mutable_began() = began_of(beginning);
  began.mutable_began()->set_migration_id(to_bytes(id));
  began.mutable_began()->set_role(journal::Began::SOURCE);
  std::filesystem::create_directories(journal::directory_of(state_dir));
  const auto path = journal::path_of(state_dir, id, journal::Began::SOURCE);
  std::ofstream file(path, std::ios::binary);
  journal::Sealed slot = journal::header();
  const auto write = [&] {
    file.write(reinterpret_cast<const char*>(slot.slot.data()), sizeof(slot.slot));
  };
  write();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  for (auto record : {began, aborted(Error(Code::kIo, "no room")), finished("runs here")}) {
    record.set_unix_ms(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
    slot = journal::seal(record, slot.checksum).value();
    write();
  }
  file.close();
  std::filesystem::resize_file(path, journal::kFileBytes);
}

/// The last record of a journal; throws if it cannot be read.
inline journal::Record last_record(const std::filesystem::path& state_dir, const Uuid& id,
                                   journal::Role role) {
  const auto contents = journal::read(journal::path_of(state_dir, id, role));
  if (!contents) throw std::runtime_error(contents.error().message());
  return contents->records.back();
}

}  // namespace gcr::daemon::test
