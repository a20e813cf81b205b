#include "migrate-agent/journal/journal_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "migrate-agent/journal/file.h"

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

/// Takes the file away if nobody owns it. False if somebody does, or it is gone already.
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
};

/// Youngest first.
Result<std::vector<Done>> finished_journals(const std::filesystem::path& state_dir) {
  GCR_ASSIGN(const auto entries, list(state_dir));
  std::vector<Done> result;
  for (const Entry& entry : entries) {
    const auto is_taken = is_owned(entry.path);
    if (!is_taken || *is_taken) continue;
    const auto contents = peek(entry.path);
    if (!contents || contents->damage || unfinished(contents->records)) continue;
    result.push_back({entry.path, time_of(contents->records.back())});
  }
  std::ranges::sort(result, std::ranges::greater(), &Done::when);
  return result;
}

/// What was being made when its maker died; one that is being made now is owned or young.
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
  return look(file.get(), path);
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

Result<std::size_t> prune(const std::filesystem::path& state_dir, std::size_t keep,
                          std::chrono::milliseconds age) {
  const auto before = system_clock::now() - age;
  GCR_TRY(remove_leftovers(state_dir, before));
  GCR_ASSIGN(const auto finished, finished_journals(state_dir));
  std::size_t count = 0;
  for (std::size_t i = keep; i < finished.size(); ++i) {
    if (finished[i].when < before && remove_unless_owned(finished[i].path)) ++count;
  }
  return count;
}

}  // namespace gcr::journal
