#include "migrate-agent/migration/finish/container.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "container/messages.h"
#include "container/notes.h"
#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::finish {
namespace {

namespace fs = std::filesystem;

/// The container's init; none if it has ended, or there is no container.
Result<std::optional<procfs::Process>> init_of(const journal::Began& began) {
  if (!began.has_container()) return std::optional<procfs::Process>();
  const journal::ProcessId& id = began.container().init();
  auto init = procfs::Process::open(id.pid(), id.start_time());
  if (init && !init->has_ended()) return std::optional(std::move(*init));
  if (init || init.error().code() == Code::kNotFound) return std::optional<procfs::Process>();
  return init.error();
}

fs::path notes_in(const fs::path& state_dir) { return state_dir / "received"; }

/// gcr-runtime looks for this file when the engine creates the container again (container/notes.h).
Status make_note(const fs::path& directory, const std::string& name) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return Error::from_errno(errno, "cannot make " + directory.string());
  }
  const fs::path path = directory / name;
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  const UniqueFd above(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file && above && ::fsync(file.get()) == 0 && ::fsync(above.get()) == 0) return {};
  return Error::from_errno(errno, "cannot write " + path.string());
}

}  // namespace

Result<journal::Container> describe(const procfs::Container& container) {
  journal::Container described;
  described.mutable_init()->set_pid(container.init().pid());
  described.mutable_init()->set_start_time(container.init().start_time());
  if (const auto freezer = cgroups::find(cgroups::hierarchies(), cgroups::kFreezer)) {
    GCR_ASSIGN(*described.mutable_group(), cgroups::group_of(*freezer, container.init().pid()));
  }
  return described;
}

Result<cgroups::Group> group_in_container(const journal::Journal& journal) {
  return cgroups::group_in_container(cgroups::hierarchies(), journal.began().container().group(),
                                     cgroups::kGroupPrefix + journal.path().filename().string());
}

Status note_left(const journal::Began& began, const worker::Config& config) {
  const std::string id = container::id_in_group(began.container().group());
  return id.empty() ? Status() : make_note(notes_in(config.state_dir), id);
}

Status leave_container(const journal::Began& began) {
  GCR_ASSIGN(const auto init, init_of(began));
  if (!init) return {};
  GCR_TRY(procfs::Container(*init).order(container::kMoved));
  return fault::point("source.container.left");
}

Status enter_container(const journal::Journal& journal, const journal::Restored& copy,
                       const worker::Config& config) {
  const journal::Began& began = journal.began();
  if (!began.has_container()) return {};
  GCR_TRY(make_note(notes_in(config.state_dir), began.container().key()));
  GCR_ASSIGN(const auto init, init_of(began));
  // It runs already if it has been told before.
  const auto inner = procfs::namespace_pids(std::to_string(copy.members(0).pid()));
  if (!init || inner.empty()) return {};
  GCR_TRY(procfs::Container(*init).order(inner.back()));
  return fault::point("destination.container.told");
}

Status join_container(const journal::Began& began, const cgroups::Group& group) {
  if (!began.has_container()) return {};
  GCR_TRY(group.dissolve([&](pid_t) { return began.container().group(); }));
  return fault::point("destination.container.joined");
}

Result<bool> has_received(const fs::path& state_dir, const std::string& key) {
  return container::has_note(notes_in(state_dir), key);
}

Status end_container(const journal::Journal& journal) {
  const journal::Began& began = journal.began();
  GCR_ASSIGN(const auto init, init_of(began));
  if (!init) return {};
  const fs::path state_dir = journal.path().parent_path().parent_path();
  GCR_ASSIGN(const bool received, has_received(state_dir, began.container().key()));
  if (received) return {};
  const Status sent = init->send(SIGKILL);
  if (!sent) return sent.error().code() == Code::kNotFound ? Status() : sent;
  return init->wait_until_ended();
}

}  // namespace gcr::finish
