// Reading journals without owning them: none of this needs a journal's lock, or disturbs its owner.
// Any thread; blocking.
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

/// One journal of STATE_DIR/journal, by its name.
struct Entry {
  Uuid migration;
  Role role = Began::ROLE_INVALID;
  std::filesystem::path path;
};

/// A migration's id as messages carry it. kInvalidArgument if it has not 16 bytes.
Result<Uuid> parse_id(std::string_view bytes);

/// The journal of a migration in this role, whether or not there is one.
Entry entry(const std::filesystem::path& state_dir, const Uuid& migration, Role role);

/// From the name alone; none if it is not a journal's.
std::optional<Entry> entry_of(const std::filesystem::path& path);

/// What the file says, for display: no record that was durable before the call is missing, and a
/// record is removed later only if a disk has failed. Waits for an append under way. A torn record
/// or damage is in the Contents (the name's migration and role are compared with Began's if the
/// name is a journal's); an Error means that the file cannot be read: kNotFound, kPermissionDenied,
/// kIo.
Result<Contents> read(const std::filesystem::path& path);

/// What the file says at this moment, for lists and for callers that must not wait: the last record
/// may still be removed, or be lost with the host. Not to be acted on; otherwise as read().
Result<Contents> peek(const std::filesystem::path& path);

/// The same for callers that act on it, or answer from it: first writes the last record to the disk
/// again. After a failed append a record can be in memory and not on the disk although the kernel
/// treats its page as clean (the error of a sync is reported once). Needs write access.
Result<Contents> read_durable(const std::filesystem::path& path);

/// What can be read of a damaged journal; see salvage() of format.h.
Result<std::vector<Record>> salvage(const std::filesystem::path& path);

/// Replaces a damaged journal with one of these records; the damaged one is kept beside it, with
/// ".damaged" at the end of its name. Records without a time get the present. All of it is on the
/// disk afterwards; on failure nothing has changed. kUnavailable if it has an owner.
Status rewrite(const std::filesystem::path& path, std::vector<Record> records);

/// Every journal of the agent with this STATE_DIR, in no order; none if the directory is missing.
/// Files with other names are left out.
Result<std::vector<Entry>> list(const std::filesystem::path& state_dir);

/// The same for any directory, for example with copies of journals.
Result<std::vector<Entry>> list_directory(const std::filesystem::path& directory);

/// Whether a live process owns the journal now. False if it does not exist.
Result<bool> is_owned(const std::filesystem::path& path);

/// Which finished journals are kept.
struct Retention {
  std::size_t of_one_user = 1000;  ///< at most the newest so many that one user ordered;
  std::chrono::milliseconds age = std::chrono::hours(24) * 30;  ///< of these, all that are newer,
  std::size_t of_all = 1000;  ///< and older ones among the newest so many of all
};

/// Removes the other finished journals (by the time of their last record), and what interrupted
/// creations left. Never one that is unfinished, damaged or owned. Gives how many were removed.
Result<std::size_t> prune(const std::filesystem::path& state_dir, const Retention& kept = {});

}  // namespace gcr::journal
