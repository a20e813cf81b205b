#include "migrate-agent/migration/source/outgoing_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/linux/cgroups/devices.h"
#include "migrate-agent/linux/procfs/container.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/source/stopped_memory.h"
#include "migrate-agent/preflight/examine/examination.h"
#include "migrate-agent/process/inspect/inspect.h"

namespace gcr::migration {

namespace fs = std::filesystem;

OutgoingImages::OutgoingImages(criu::Command criu, SourceJob& process, fs::path scratch,
                               worker::Permissions permissions)
    : criu_(std::move(criu)),
      pid_(process.pid()),
      options_{process.group().directory_for_criu(), process::OutsideTcp::kRefuse},
      scratch_(std::move(scratch)),
      permissions_(std::move(permissions)),
      changed_(process.pid(), process.gpu_members()) {
  options_.may_move = [permissions = permissions_](const proto::Credentials& thread) {
    return permissions.check_thread(thread);
  };
}

Result<OutgoingImages> OutgoingImages::create(const criu::Command& criu, SourceJob& process,
                                              fs::path scratch, worker::Permissions permissions,
                                              const proto::MigrateRequest& request,
                                              std::uint64_t resident_bytes,
                                              std::shared_ptr<const criu::Plugin> plugin) {
  OutgoingImages images(criu, process, std::move(scratch), std::move(permissions));
  images.options_.outside_tcp = preflight::outside_tcp(request);
  GCR_ASSIGN(const auto container, procfs::Container::of_root(process.pid()));
  images.options_.in_container = container.has_value();
  if (plugin != nullptr) {
    GCR_ASSIGN(images.device_groups_,
               cgroups::device_groups_of(cgroups::hierarchies(), process.pid()));
    images.options_.groups = images.device_groups_;
    images.options_.plugin = std::move(plugin);
  }
  const bool asked = request.image_mode() != proto::IMAGE_MODE_AUTO;
  images.in_rounds_ =
      asked ? request.image_mode() == proto::IMAGE_MODE_ROUNDS : resident_bytes >= kWorthRounds;
  images.reason_ =
      asked ? "asked for"
            : fmt::format("the process has {} of resident memory", format_bytes(resident_bytes));
  return images;
}

process::MayMove OutgoingImages::may_move() const {
  return [this](pid_t opened) -> Status {
    GCR_TRY(permissions_.check_process(opened));
    return {};
  };
}

Status OutgoingImages::send_private(images::Sink& sink) {
  process::PrivateMemory memory(pid_);
  for (const pid_t pid : procfs::tree(pid_)) {
    const auto inner = process::pid_in_namespace(pid);
    const auto read = process::open_memory(pid, may_move());
    if (!read && read.error().code() == Code::kPermissionDenied) return read.error();
    const auto pages = changed_.round(pid, memory.of(pid));
    if (!inner || !read || !pages) continue;  // it has ended
    known_.erase(pid);
    if (auto tracked = changed_.tracked(pid); !tracked.empty()) {
      known_[pid] = {memory.mappings(pid), std::move(tracked)};
    }
    const auto read_what_is_there = [&](std::uint64_t address, std::span<std::byte> bytes) {
      if (!(*read)(address, bytes)) std::ranges::fill(bytes, std::byte{0});
      return Status();
    };
    GCR_TRY(
        sink.take_memory(criu::images::memory_images(*inner), *pages, read_what_is_there, false));
  }
  return {};
}

Status OutgoingImages::send_shared(images::Sink& sink) {
  GCR_ASSIGN(const auto memories, process::shared_memories(procfs::tree(pid_), may_move()));
  GCR_ASSIGN(const SharedPages pages, send_shared_memory(sink, memories, false));
  shared_bytes_ = 0;
  for (const auto& [inode, of_memory] : pages) shared_bytes_ += bytes_of(of_memory);
  return {};
}

bool OutgoingImages::lacks_round() const {
  if (!in_rounds_ || rounds_ == 0) return in_rounds_;
  const bool reads_much = shared_bytes_ >= kWorthOneMore;
  if (!changed_.tracks() && !reads_much) return false;
  const auto shrinks = [](std::uint64_t now, std::uint64_t before) {
    return now >= kWorthOneMore && now <= before / 2;
  };
  return rounds_ == 1 || shrinks(changed_.written_bytes(), written_before_) ||
         (reads_much && shrinks(sent_, sent_before_));
}

Status OutgoingImages::round(images::Sink& sink) {
  ++rounds_;
  written_before_ = changed_.written_bytes();
  GCR_TRY(send_private(sink));
  GCR_TRY(send_shared(sink));
  GCR_ASSIGN(const images::SentImages sent, sink.finish());
  sent_before_ = std::exchange(sent_, sent.sent_bytes - early_bytes_);
  early_bytes_ = sent.sent_bytes;
  return {};
}

const process::KnownMemory* OutgoingImages::known(pid_t pid) const {
  const auto found = known_.find(pid);
  return found == known_.end() ? nullptr : &found->second;
}

Status OutgoingImages::prepare() {
  GCR_ASSIGN(prepared_, criu::PreparedDump::create(criu_, pid_, scratch_, options_));
  return {};
}

Result<std::vector<process::ThreadRights>> OutgoingImages::dump(
    SourceJob& process, const LastCheck& last, images::Sink& sink,
    const memory_files::Renamed& renamed) {
  StoppedMemory memory(pid_, known_, changed_, may_move(), sink);
  const auto look = [&]() -> Status {
    GCR_TRY(memory.open());
    return last.check();
  };
  const auto take = [&](const std::string& name, UniqueFd content) {
    return sink.take(name, std::move(content));
  };
  GCR_ASSIGN(auto rights, process.dump({look, last.once_more}, *prepared_, take, renamed, memory));
  GCR_TRY(memory.send_shared_maps());
  return rights;
}

}  // namespace gcr::migration
