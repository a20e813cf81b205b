// The journal of one migration in one role: its owner's decisions, in order, on disk before it acts
// on them. format.h has the bytes, journal_files.h reads journals that others own.
//
// STATE_DIR/journal/<uuid>-source or <uuid>-destination, on a local file system. A Journal owns its
// file: it holds flock(LOCK_EX) on it, close-on-exec, so the lock is released as soon as the owner
// is dead, whatever it had started (a child in the middle of its exec keeps it a moment longer).
// While a record is being written to the disk readers are locked out (an open-file-description
// lock): nobody ever reads a record that may still be removed.
//
// All calls block, for as long as the disk takes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/commit/journal/format.h"
#include "proto/journal.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/uuid.h"

namespace gcr::journal {

using Role = Began::Role;
using ProcessIds = google::protobuf::RepeatedPtrField<ProcessId>;

/// "source" or "destination".
std::string_view to_string(Role role);

/// STATE_DIR/journal.
std::filesystem::path directory_of(const std::filesystem::path& state_dir);

/// The path of the journal of `migration` in `role`, whether or not it exists.
std::filesystem::path path_of(const std::filesystem::path& state_dir, const Uuid& migration,
                              Role role);

/// Of a Began that was read from a journal (parse() has checked it).
Uuid id_of(const Began& began);

/// Whether both are the same process; a PID alone may have been used again.
bool is_same(const ProcessId& one, const ProcessId& other);

/// The PID of the process that was named, of a list of members; 0 if there is none.
int root_pid(const ProcessIds& members);

/// The source's members, by the last list of them. `records` begin with Began.
const ProcessIds& members_of(std::span<const Record> records);

/// Those of a list of members, in its order.
std::vector<pid_t> pids_of(const ProcessIds& members);

/// This host's boot id, for Began.boot_id. Processes do not survive a change of it.
Result<std::string> boot_id();

/// The last record of this kind (Record::kCommitted, ...), or null.
const Record* last(std::span<const Record> records, Record::BodyCase kind);

/// Whether something is left to do: there is no Finished.
bool unfinished(std::span<const Record> records);

/// Whether they leave a job suspended: nobody works on it until it is resumed.
bool suspended(std::span<const Record> records);

/// What open() does while another process owns the journal.
enum class Lock : std::uint8_t {
  kInvalid = 0,
  kTry,          ///< kUnavailable at once
  kWait,         ///< waits for the owner's end, through signals
  kWaitOrSignal  ///< waits; kCancelled if a signal handler ran meanwhile
};

/// Move-only; one thread at a time.
class Journal {
 public:
  /// Makes STATE_DIR/journal (0700) if it is missing, and the file with Began as its first record;
  /// `others` follow it.
  /// Fills in Began's migration_id, role and, if empty, boot_id. On success everything is on disk
  /// and the file has room for all later records. On failure there is no file: kRefused if this
  /// migration has a journal in this role already, kResourceExhausted if the disk is full.
  static Result<Journal> create(const std::filesystem::path& state_dir, const Uuid& migration,
                                Role role, Began began, std::vector<Record> others = {});

  /// Becomes the owner of a journal that exists, and reads it as read_durable() does. An incomplete
  /// last record is removed, and torn() says so. kNotFound, also if it was pruned while this
  /// call waited; kUnavailable if it is owned (Lock::kTry); kDataLoss, naming file and offset, if
  /// it is damaged: the file is not changed.
  static Result<Journal> open(const std::filesystem::path& path, Lock how);

  Journal(Journal&&) noexcept = default;
  Journal& operator=(Journal&&) noexcept = default;

  /// Sets the record's time, cuts its strings at 512 bytes and makes them UTF-8, so that no text of
  /// a peer or an error prevents writing or reading it. On success it is on disk. On failure the
  /// file is as it was: kIo, kResourceExhausted (also if it is full), kInvalidArgument (seal()).
  /// Except kDataLoss: the record could not be removed, so that a reader may or may not find it.
  /// Then this Journal refuses every further record, and the caller acts as if it had been killed:
  /// the next reader of the file decides.
  Status append(Record record);

  const std::filesystem::path& path() const { return path_; }
  const Uuid& migration() const { return migration_; }
  Role role() const { return began().role(); }
  const Began& began() const { return records_.front().began(); }

  /// In the order in which they were written; the first is Began.
  const std::vector<Record>& records() const { return records_; }
  const Record* last(Record::BodyCase kind) const { return journal::last(records_, kind); }
  bool has(Record::BodyCase kind) const { return last(kind) != nullptr; }

  /// open() found an incomplete last record.
  bool torn() const { return torn_; }

 private:
  Journal(UniqueFd file, std::filesystem::path path, Contents contents);

  std::uint64_t end_bytes() const;
  Status write(const Slot& slot);
  Status clear(std::uint64_t offset, std::size_t size_bytes);

  UniqueFd file_;
  std::filesystem::path path_;
  Uuid migration_;
  std::vector<Record> records_;
  Checksum checksum_ = 0;
  bool torn_ = false;
  bool lost_ = false;  ///< a record could not be removed
};

}  // namespace gcr::journal
