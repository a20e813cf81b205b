// Reads journals that other processes may own: no function here needs a journal's lock or disturbs
// its owner. Any thread; blocking.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "migrate-agent/commit/journal/format.h"
#include "migrate-agent/commit/journal/journal.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::journal {

/// One journal of STATE_DIR/journal, identified by its name.
struct Entry {
  Uuid migration;
  Role role = Began::ROLE_INVALID;
  std::filesystem::path path;
};

/// Returns the migration's id from the bytes in a message. kInvalidArgument if there are not 16.
Result<Uuid> parse_id(std::string_view bytes);

/// Returns the journal of a migration in this role, whether or not it exists.
Entry entry(const std::filesystem::path& state_dir, const Uuid& migration, Role role);

/// Parses the file's name; none if it is not that of a journal.
std::optional<Entry> entry_of(const std::filesystem::path& path);

/// Reads a journal for display. Every record that was durable before the call is returned, and a
/// returned record is removed later only if a disk fails. Waits while a record is being appended. A
/// torn record or damage is reported in the Contents, also if Began differs from the file's name;
/// an Error means that the file cannot be read: kNotFound, kPermissionDenied, kIo.
Result<Contents> read(const std::filesystem::path& path);

/// Reads a journal without waiting, for lists: the last record may still be removed or be lost with
/// the host, so the caller must not act on it. Otherwise like read().
Result<Contents> peek(const std::filesystem::path& path);

/// Reads a journal for a caller that acts on it or replies from it: first writes the last record to
/// disk again. After a failed append a record can be in memory but not on disk although the kernel
/// treats its page as clean (a sync error is reported once). Needs write access.
Result<Contents> read_durable(const std::filesystem::path& path);

/// Returns the readable records of a damaged journal; see salvage() of format.h.
Result<std::vector<Record>> salvage(const std::filesystem::path& path);

/// Replaces a damaged journal by one with these records and keeps the damaged one in the same
/// directory, with ".damaged" appended to its name. Records without a time get the current time. On
/// success everything is on disk; on failure nothing has changed. kUnavailable if the journal has
/// an owner.
Status rewrite(const std::filesystem::path& path, std::vector<Record> records);

/// Returns every journal of the agent with this STATE_DIR, in no particular order; none if the
/// directory is missing. Files with other names are ignored.
Result<std::vector<Entry>> list(const std::filesystem::path& state_dir);

/// Returns the journals in any directory, for example copies, like list().
Result<std::vector<Entry>> list_directory(const std::filesystem::path& directory);

/// Returns whether a live process owns the journal now. False if it does not exist.
Result<bool> is_owned(const std::filesystem::path& path);

/// Which finished journals prune() keeps: at most the newest `of_one_user` of each user; of these,
/// the ones younger than `age` and the ones among the newest `of_all` of all users.
struct Retention {
  std::size_t of_one_user = 1000;
  std::chrono::milliseconds age = std::chrono::hours(24) * 30;
  std::size_t of_all = 1000;
};

/// Removes all other finished journals, by the time of their last record, and files left by
/// interrupted creations; never a journal that is unfinished, damaged or owned. Returns how many
/// were removed.
Result<std::size_t> prune(const std::filesystem::path& state_dir, const Retention& kept = {});

}  // namespace gcr::journal
