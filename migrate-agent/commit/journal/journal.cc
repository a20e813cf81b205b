// How an append works. Under the content lock, so that no reader sees an intermediate state, a slot
// is written in place and synced. If that fails, the bytes that may have changed are overwritten
// with zeros and synced: the file is then as before, and the append has failed. If that fails too,
// the journal is lost for this process. open() is the other half: it writes the last record and the
// free slot after it to disk once more (load_durable), and clears a slot that a crash left
// incomplete.
#include "migrate-agent/commit/journal/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <ranges>

#include "migrate-agent/commit/journal/file.h"
#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/commit/journal/text.h"

namespace gcr::journal {
namespace {

constexpr std::size_t kMaxTextBytes = 512;
constexpr std::array<std::byte, kSlotBytes> kZeros{};

/// Removes a file at the end of the scope unless keep() was called.
class Provisional {
 public:
  explicit Provisional(std::filesystem::path path) : path_(std::move(path)) {}
  Provisional(const Provisional&) = delete;
  Provisional& operator=(const Provisional&) = delete;
  ~Provisional() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  const std::filesystem::path& path() const { return path_; }
  void renamed_to(const std::filesystem::path& path) { path_ = path; }
  void keep() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

/// Completes a record and encodes it. All changes to a record happen here: the record in memory
/// must equal the one on disk.
Result<Sealed> finish_and_seal(Record& record, Checksum previous) {
  using std::chrono::milliseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  record.set_unix_ms(std::chrono::duration_cast<milliseconds>(now).count());
  GCR_TRY(make_fit(record, kMaxTextBytes));
  return seal(record, previous);
}

Status make_directory(const std::filesystem::path& state_dir) {
  const auto directory = directory_of(state_dir);
  const std::string doing = fmt::format("cannot make {}", directory.native());
  std::error_code error;
  std::filesystem::create_directories(state_dir, error);
  if (error) return Error::from_errno(error.value(), doing);
  if (::mkdir(directory.c_str(), 0700) == 0) return sync_directory(state_dir);
  if (errno != EEXIST) return Error::from_errno(errno, doing);
  return {};
}

Error name_taken(int error, const std::filesystem::path& path) {
  if (error == EEXIST) {
    return {Code::kRefused, fmt::format("{} exists already", path.native())};
  }
  return Error::from_errno(error, path.native());
}

/// Creates the file of the journal at `path`, owned and on disk; removes it if anything fails.
/// Writes the whole file, zeros too, instead of reserving space: later records are then written in
/// place without a change of file system metadata (half the time on ext4).
Result<UniqueFd> make_file(const std::filesystem::path& path, std::span<const Record> records) {
  GCR_ASSIGN(const auto content, assemble(records));
  Provisional made(path.native() + kUnfinishedSuffix);
  UniqueFd file(::open(made.path().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) {
    const Error error = name_taken(errno, made.path());
    made.keep();
    return error;
  }
  GCR_TRY(own(file.get(), Lock::kWait));
  std::size_t written_bytes = 0;
  GCR_TRY(write_through(file.get(), content, 0, written_bytes));
  if (::renameat2(AT_FDCWD, made.path().c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) {
    return name_taken(errno, path);
  }
  made.renamed_to(path);
  GCR_TRY(sync_directory(path.parent_path()));
  made.keep();
  return file;
}

}  // namespace

std::string_view to_string(Role role) { return role == Began::SOURCE ? "source" : "destination"; }

std::filesystem::path directory_of(const std::filesystem::path& state_dir) {
  return state_dir / "journal";
}

std::filesystem::path path_of(const std::filesystem::path& state_dir, const Uuid& migration,
                              Role role) {
  return directory_of(state_dir) / fmt::format("{}-{}", migration.to_string(), to_string(role));
}

Uuid id_of(const Began& began) { return to_uuid(began.migration_id()); }

bool is_same(const ProcessId& one, const ProcessId& other) {
  return one.pid() == other.pid() && one.start_time() == other.start_time();
}

int root_pid(const ProcessIds& members) { return members.empty() ? 0 : members[0].pid(); }

std::vector<pid_t> pids_of(const ProcessIds& members) {
  std::vector<pid_t> pids;
  for (const ProcessId& member : members) pids.push_back(member.pid());
  return pids;
}

Result<std::string> boot_id() {
  std::string id;
  if (!std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id) || id.empty()) {
    return Error(Code::kIo, "cannot read /proc/sys/kernel/random/boot_id");
  }
  return id;
}

const Record* last(std::span<const Record> records, Record::BodyCase kind) {
  const auto found = std::ranges::find(records.rbegin(), records.rend(), kind, &Record::body_case);
  return found == records.rend() ? nullptr : &*found;
}

const ProcessIds& members_of(std::span<const Record> records) {
  const Record* detaching = last(records, Record::kDetaching);
  const bool has_members = detaching != nullptr && !detaching->detaching().members().empty();
  return has_members ? detaching->detaching().members() : records.front().began().members();
}

bool unfinished(std::span<const Record> records) {
  return last(records, Record::kFinished) == nullptr;
}

/// A job is suspended if the last record other than KeeperStarted is Suspended; a keeper that is
/// started for a resume changes nothing.
bool suspended(std::span<const Record> records) {
  const Record* decisive = nullptr;
  for (const Record& record : records) {
    if (!record.has_keeper_started()) decisive = &record;
  }
  return decisive != nullptr && decisive->has_suspended();
}

Journal::Journal(UniqueFd file, std::filesystem::path path, Contents contents)
    : file_(std::move(file)),
      path_(std::move(path)),
      migration_(id_of(contents.records.front().began())),
      records_(std::move(contents.records)),
      checksum_(contents.checksum) {}

Result<Journal> Journal::create(const std::filesystem::path& state_dir, const Uuid& migration,
                                Role role, Began began, std::vector<Record> others) {
  if (role != Began::SOURCE && role != Began::DESTINATION) {
    return Error(Code::kInvalidArgument, "a journal needs the role source or destination");
  }
  began.set_migration_id(to_bytes(migration));
  began.set_role(role);
  if (began.boot_id().empty()) {
    GCR_ASSIGN(*began.mutable_boot_id(), boot_id());
  }
  Contents contents;
  *contents.records.emplace_back().mutable_began() = std::move(began);
  std::ranges::move(others, std::back_inserter(contents.records));
  contents.checksum = header().checksum;
  for (Record& record : contents.records) {
    GCR_ASSIGN(const Sealed sealed, finish_and_seal(record, contents.checksum));
    contents.checksum = sealed.checksum;
  }
  GCR_TRY(make_directory(state_dir));
  const auto path = path_of(state_dir, migration, role);
  auto file = make_file(path, contents.records);
  if (!file) return file.error().while_doing("cannot begin a journal");
  return Journal(std::move(*file), path, std::move(contents));
}

Result<Journal> Journal::open(const std::filesystem::path& path, Lock how) {
  GCR_ASSIGN(UniqueFd file, open_file(path, O_RDWR));
  if (const Status owned = own(file.get(), how); !owned) {
    return owned.error().while_doing(path.native());
  }
  if (unlinked(file.get())) {
    return Error(Code::kNotFound, fmt::format("{} was removed", path.native()));
  }
  // Readers may be syncing the last record to disk, as load_durable() does.
  GCR_ASSIGN(const ContentLock held, ContentLock::take(file.get(), F_WRLCK));
  GCR_ASSIGN(Contents contents, load_durable(file.get(), path));
  if (contents.damage) return *contents.damage;
  const bool torn = contents.torn;
  Journal journal(std::move(file), path, std::move(contents));
  if (torn) GCR_TRY(journal.clear(journal.end_bytes(), kSlotBytes));
  return journal;
}

Status Journal::append(Record record) {
  if (lost_) {
    return Error(Code::kDataLoss,
                 fmt::format("{} accepts no more records: the last one may or may not be on disk",
                             path_.native()));
  }
  if (end_bytes() == kFileBytes) {
    return Error(Code::kResourceExhausted, fmt::format("{} is full", path_.native()));
  }
  GCR_ASSIGN(const Sealed sealed, finish_and_seal(record, checksum_));
  GCR_TRY(write(sealed.slot));
  records_.push_back(std::move(record));
  checksum_ = sealed.checksum;
  return {};
}

std::uint64_t Journal::end_bytes() const { return (1 + records_.size()) * kSlotBytes; }

/// Writes one slot. On failure nothing of it is on disk, or the journal is lost.
Status Journal::write(const Slot& slot) {
  GCR_ASSIGN(const ContentLock held, ContentLock::take(file_.get(), F_WRLCK));
  std::size_t written_bytes = 0;
  const Status written = write_through(file_.get(), slot, end_bytes(), written_bytes);
  if (written) return {};
  const Error error = written.error().while_doing(path_.native());
  const Status cleared = clear(end_bytes(), written_bytes);
  if (cleared) return error;
  lost_ = true;
  return Error(Code::kDataLoss, fmt::format("{}; the incomplete record could not be removed: {}",
                                            error.message(), cleared.error().message()));
}

/// Writes zeros to disk.
Status Journal::clear(std::uint64_t offset, std::size_t size_bytes) {
  std::size_t written_bytes = 0;
  return write_through(file_.get(), std::span(kZeros).first(size_bytes), offset, written_bytes);
}

}  // namespace gcr::journal
