// The journal of one migration in one role: its owner's decisions in order, each on disk before the
// owner acts on it. format.h has the layout; journal_files.h reads journals that other processes
// own.
//
// A journal is STATE_DIR/journal/<uuid>-source or <uuid>-destination, on a local file system. A
// Journal owns its file through flock(LOCK_EX) on a close-on-exec descriptor. The lock is released
// as soon as the owner is dead, even if it had started children (a child in the middle of its exec
// keeps it a moment longer). While a record is being written to disk an open-file-description lock
// excludes readers: no reader sees a record that may still be removed.
//
// All calls block for as long as the disk takes.
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

/// Returns STATE_DIR/journal.
std::filesystem::path directory_of(const std::filesystem::path& state_dir);

/// Returns the path of the journal of `migration` in `role`, whether or not it exists.
std::filesystem::path path_of(const std::filesystem::path& state_dir, const Uuid& migration,
                              Role role);

/// Returns the migration's id from a Began that parse() has checked.
Uuid id_of(const Began& began);

/// Returns whether both are the same process, by PID and start time; a PID alone may have been
/// reused.
bool is_same(const ProcessId& one, const ProcessId& other);

/// Returns the PID of the first member, the process that the operator named; 0 if there are no
/// members.
int root_pid(const ProcessIds& members);

/// Returns the source's members from the last record that lists them. `records` begin with Began.
const ProcessIds& members_of(std::span<const Record> records);

/// Returns the PIDs of the members in their order.
std::vector<pid_t> pids_of(const ProcessIds& members);

/// Returns this host's boot id, for Began.boot_id. Processes do not survive a change of it.
Result<std::string> boot_id();

/// Returns the last record of this kind (Record::kCommitted, ...), or null.
const Record* last(std::span<const Record> records, Record::BodyCase kind);

/// Returns whether the migration has work left: there is no Finished.
bool unfinished(std::span<const Record> records);

/// Returns whether these records leave a job suspended, with no process working on it until it is
/// resumed.
bool suspended(std::span<const Record> records);

/// How open() treats a journal that another process owns.
enum class Lock : std::uint8_t {
  kInvalid = 0,
  kTry,   ///< fails at once with kUnavailable
  kWait,  ///< waits until the owner has ended, through signals
};

/// An open journal that this process owns. Move-only; one thread at a time.
class Journal {
 public:
  /// Creates the file with Began as its first record and `others` after it; creates
  /// STATE_DIR/journal (0700) if it is missing. Fills in Began's migration_id, role and, if empty,
  /// boot_id. On success everything is on disk and the file has space for all later records. On
  /// failure there is no file: kRefused if this migration already has a journal in this role,
  /// kResourceExhausted if the disk is full.
  static Result<Journal> create(const std::filesystem::path& state_dir, const Uuid& migration,
                                Role role, Began began, std::vector<Record> others = {});

  /// Takes over an existing journal and reads it as read_durable() does. Removes an incomplete last
  /// record. kNotFound, also if the journal was pruned while this call
  /// waited; kUnavailable if it is owned (Lock::kTry); kDataLoss, naming file and offset, if it is
  /// damaged, and then the file is not changed.
  static Result<Journal> open(const std::filesystem::path& path, Lock how);

  Journal(Journal&&) noexcept = default;
  Journal& operator=(Journal&&) noexcept = default;

  /// Appends a record; success means that it is on disk. Sets the record's time, cuts its strings
  /// at 512 bytes and makes them valid UTF-8, so that no text of a peer or an error prevents
  /// writing or reading it. On failure the file is unchanged: kIo, kResourceExhausted (also if the
  /// journal is full), kInvalidArgument (seal()). The exception is kDataLoss: the record could not
  /// be removed, so that a reader may or may not find it. This Journal then refuses all further
  /// records, and the caller must act as if it had been killed: the next reader of the file
  /// decides.
  Status append(Record record);

  const std::filesystem::path& path() const { return path_; }
  const Uuid& migration() const { return migration_; }
  Role role() const { return began().role(); }
  const Began& began() const { return records_.front().began(); }

  /// The records in the order in which they were written; the first is Began.
  const std::vector<Record>& records() const { return records_; }
  const Record* last(Record::BodyCase kind) const { return journal::last(records_, kind); }
  bool has(Record::BodyCase kind) const { return last(kind) != nullptr; }

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
  bool lost_ = false;  ///< a record could not be removed
};

}  // namespace gcr::journal
