#include "migrate-agent/commit/journal/journal_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string_view>

#include "migrate-agent/commit/journal/file.h"

namespace gcr::journal {
namespace {

using std::chrono::system_clock;

constexpr std::size_t kUuidCharacters = 36;

Result<std::vector<std::filesystem::path>> paths(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> result;
  std::error_code error;
  std::filesystem::directory_iterator file(directory, error);
  while (!error && file != std::filesystem::directory_iterator()) {
    result.push_back(file->path());
    file.increment(error);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return Error::from_errno(error.value(), fmt::format("cannot list {}", directory.native()));
  }
  return result;
}

/// Removes the file if it has no owner. Returns false if it has one or no longer exists.
bool remove_unless_owned(const std::filesystem::path& path) {
  const auto file = open_file(path, O_RDONLY);
  return file && own(file->get(), Lock::kTry) && !unlinked(file->get()) &&
         ::unlink(path.c_str()) == 0;
}

system_clock::time_point time_of(const Record& record) {
  return system_clock::time_point(std::chrono::milliseconds(record.unix_ms()));
}

struct Done {
  std::filesystem::path path;
  system_clock::time_point when;
  std::string ordered_by;
};

/// Returns the finished journals among `entries`, newest first.
std::vector<Done> finished_among(const std::vector<Entry>& entries) {
  std::vector<Done> result;
  for (const Entry& entry : entries) {
    const auto is_taken = is_owned(entry.path);
    if (!is_taken || *is_taken) continue;
    const auto contents = peek(entry.path);
    if (!contents || contents->damage || unfinished(contents->records)) continue;
    const std::vector<Record>& records = contents->records;
    result.push_back({entry.path, time_of(records.back()), records.front().began().ordered_by()});
  }
  std::ranges::sort(result, std::ranges::greater(), &Done::when);
  return result;
}

/// Removes files whose creator died; a file that is being created now is owned or newer than
/// `before`.
Status remove_leftovers(const std::filesystem::path& state_dir, system_clock::time_point before) {
  GCR_ASSIGN(const auto files, paths(directory_of(state_dir)));
  for (const auto& path : files) {
    struct stat facts {};
    if (path.extension() != kUnfinishedSuffix || ::stat(path.c_str(), &facts) != 0) continue;
    if (system_clock::from_time_t(facts.st_mtime) < before) remove_unless_owned(path);
  }
  return {};
}

}  // namespace

Result<Uuid> parse_id(std::string_view bytes) {
  if (bytes.size() == Uuid().bytes.size()) return to_uuid(bytes);
  return Error(Code::kInvalidArgument, "a migration id has 16 bytes");
}

Entry entry(const std::filesystem::path& state_dir, const Uuid& migration, Role role) {
  return {migration, role, path_of(state_dir, migration, role)};
}

std::optional<Entry> entry_of(const std::filesystem::path& path) {
  const std::string name = path.filename();
  const auto uuid = Uuid::parse(std::string_view(name).substr(0, kUuidCharacters));
  if (!uuid) return std::nullopt;
  for (const Role role : {Began::SOURCE, Began::DESTINATION}) {
    if (name == path_of({}, *uuid, role).filename()) return Entry{*uuid, role, path};
  }
  return std::nullopt;
}

Result<Contents> read(const std::filesystem::path& path) {
  GCR_ASSIGN(const UniqueFd file, open_file(path, O_RDONLY));
  const auto held = ContentLock::take(file.get(), F_RDLCK);
  if (!held) return held.error().while_doing(path.native());
  return load(file.get(), path);
}

Result<Contents> peek(const std::filesystem::path& path) {
  GCR_ASSIGN(const UniqueFd file, open_file(path, O_RDONLY));
  return load_cached(file.get(), path);
}

Result<Contents> read_durable(const std::filesystem::path& path) {
  GCR_ASSIGN(const UniqueFd file, open_file(path, O_RDWR));
  const auto held = ContentLock::take(file.get(), F_WRLCK);
  if (!held) return held.error().while_doing(path.native());
  return load_durable(file.get(), path);
}

Result<std::vector<Record>> salvage(const std::filesystem::path& path) {
  GCR_ASSIGN(const UniqueFd file, open_file(path, O_RDONLY));
  GCR_ASSIGN(const auto bytes, read_all(file.get()));
  return salvage(bytes);
}

Status rewrite(const std::filesystem::path& path, std::vector<Record> records) {
  GCR_ASSIGN(const UniqueFd damaged, open_file(path, O_RDONLY));
  GCR_TRY(own(damaged.get(), Lock::kTry));
  const auto now = system_clock::now().time_since_epoch();
  for (Record& record : records) {
    if (record.unix_ms() != 0) continue;
    record.set_unix_ms(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  }
  GCR_ASSIGN(const auto bytes, assemble(records));
  const std::string fresh = path.native() + kUnfinishedSuffix;
  const UniqueFd file(::open(fresh.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return Error::from_errno(errno, "cannot make " + fresh);
  std::size_t written_bytes = 0;
  GCR_TRY(write_through(file.get(), bytes, 0, written_bytes));
  const auto renamed = [](const std::string& from, const std::string& to, unsigned flags) {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0;
  };
  if (!renamed(fresh, path, RENAME_EXCHANGE) || !renamed(fresh, path.native() + ".damaged", 0)) {
    return Error::from_errno(errno, "cannot replace " + path.native());
  }
  return sync_directory(path.parent_path());
}

Result<std::vector<Entry>> list(const std::filesystem::path& state_dir) {
  return list_directory(directory_of(state_dir));
}

Result<std::vector<Entry>> list_directory(const std::filesystem::path& directory) {
  GCR_ASSIGN(const auto files, paths(directory));
  std::vector<Entry> entries;
  for (const auto& path : files) {
    if (auto entry = entry_of(path)) entries.push_back(*std::move(entry));
  }
  return entries;
}

Result<bool> is_owned(const std::filesystem::path& path) {
  const auto file = open_file(path, O_RDONLY);
  if (!file && file.error().code() == Code::kNotFound) return false;
  if (!file) return file.error();
  return owned(file->get());
}

Result<std::size_t> prune(const std::filesystem::path& state_dir, const Retention& kept) {
  const auto before = system_clock::now() - kept.age;
  GCR_TRY(remove_leftovers(state_dir, before));
  GCR_ASSIGN(const auto entries, list(state_dir));
  if (entries.size() <= std::min(kept.of_one_user, kept.of_all)) return 0;  // too few to check
  std::size_t removed = 0;
  std::size_t older = 0;
  std::map<std::string, std::size_t> of_users;
  for (const Done& done : finished_among(entries)) {
    const bool is_among_all = older++ < kept.of_all;
    const bool is_among_users = of_users[done.ordered_by]++ < kept.of_one_user;
    if (is_among_users && (is_among_all || done.when >= before)) continue;
    if (remove_unless_owned(done.path)) ++removed;
  }
  return removed;
}

}  // namespace gcr::journal
