#include "migrate-agent/migration/source/outgoing_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/linux/cgroups/devices.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/examine/examination.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/pages/present_pages.h"
#include "migrate-agent/process/pages/process_memory.h"
#include "migrate-agent/process/pages/shared_zeros.h"

namespace gcr::migration {

namespace fs = std::filesystem;

namespace {

/// CRIU reads whatever program a process runs by then.
Status check_pre_dumps(const criu::Command& criu, const worker::Permissions& permissions) {
  if (permissions.everyone()) return criu::check_memory_tracking(criu);
  return Error(Code::kUnsupported,
               "before Linux 6.7 only what an operator moves who may move everybody's processes is "
               "read in rounds");
}

}  // namespace

OutgoingImages::OutgoingImages(criu::Command criu, SourceJob& process, fs::path scratch,
                               worker::Permissions permissions)
    : criu_(std::move(criu)),
      pid_(process.pid()),
      options_{process.group().directory_for_criu(), process::OutsideTcp::kRefuse},
      scratch_(std::move(scratch)),
      permissions_(std::move(permissions)),
      changed_(process) {
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
  if (plugin != nullptr) {
    GCR_ASSIGN(images.device_groups_,
               cgroups::device_groups_of(cgroups::hierarchies(), process.pid()));
    images.options_.groups = images.device_groups_;
    images.options_.plugin = std::move(plugin);
  }
  const proto::ImageMode requested = request.image_mode();
  if (requested == proto::IMAGE_MODE_STREAM) {
    images.reason_ = "asked for";
    return images;
  }
  const bool asked = requested == proto::IMAGE_MODE_ROUNDS;
  const bool scans = process::can_scan_pages();
  const Status tracking = scans ? Status() : check_pre_dumps(criu, images.permissions_);
  if (!tracking && asked) {
    return Error(Code::kRefused, tracking.error().message() + " [no-dirty-tracking]");
  }
  if (tracking && (asked || resident_bytes >= (scans ? kWorthRounds : kWorthPreDumps))) {
    images.way_ = scans ? Way::kMemory : Way::kPreDumps;
  }
  if (asked) {
    images.reason_ = "asked for";
  } else if (!tracking) {
    images.reason_ = tracking.error().message();
  } else {
    images.reason_ =
        fmt::format("the process has {} of resident memory", format_bytes(resident_bytes));
  }
  return images;
}

fs::path OutgoingImages::directory_of_round(unsigned round) const {
  return scratch_ / fmt::format("pre-{}", round);
}

Status OutgoingImages::pre_dump(images::Sink& sink) {
  const fs::path directory = directory_of_round(rounds_ + 1);
  std::error_code error;
  if (!fs::create_directory(directory, error)) {
    return Error::from_errno(error.value(), fmt::format("cannot create {}", directory.string()));
  }
  const fs::path parent = rounds_ == 0 ? fs::path() : directory_of_round(rounds_);
  GCR_TRY(criu::pre_dump(criu_, pid_, directory, parent));
  ++rounds_;
  return images::take_directory(sink, directory.string(), fmt::format("pre-{}/", rounds_));
}

process::MayMove OutgoingImages::may_move() const {
  return [this](pid_t opened) -> Status {
    GCR_TRY(permissions_.check_process(opened));
    return {};
  };
}

Result<ReadMemory> OutgoingImages::open_memory(pid_t pid) const {
  return process::open_memory(pid, may_move());
}

/// What cannot be read any more is zeros until the last round: the process has given it back, or
/// executes another program. A process that was born meanwhile is asked about like any other.
Status OutgoingImages::send_memory(images::Sink& sink) {
  process::PrivateMemory memory(pid_);
  for (const pid_t pid : procfs::tree(pid_)) {
    const auto inner = process::pid_in_namespace(pid);
    const auto read = open_memory(pid);
    if (!read && read.error().code() == Code::kPermissionDenied) return read.error();
    const auto pages = changed_.round(pid, memory.of(pid));
    if (!inner || !read || !pages) continue;  // it has ended
    shared_->known.erase(pid);
    if (auto tracked = changed_.tracked(pid); !tracked.empty()) {
      shared_->known[pid] = {memory.mappings(pid), std::move(tracked)};
    }
    const auto read_what_is_there = [&](std::uint64_t address, std::span<std::byte> bytes) {
      if (!(*read)(address, bytes)) std::ranges::fill(bytes, std::byte{0});
      return Status();
    };
    GCR_TRY(
        sink.take_memory(criu::images::memory_images(*inner), *pages, read_what_is_there, false));
  }
  GCR_ASSIGN(const auto shared, process::shared_memories(procfs::tree(pid_), may_move()));
  GCR_ASSIGN(const SharedPages pages, send_shared(sink, shared, false));
  shared_bytes_ = 0;
  for (const auto& [inode, of_memory] : pages) shared_bytes_ += bytes_of(of_memory);
  return {};
}

/// Gives the pages that each memory has. Nobody's writes to it are tracked: all of it is read.
Result<OutgoingImages::SharedPages> OutgoingImages::send_shared(
    images::Sink& sink, const std::vector<process::SharedMemory>& memories, bool last) const {
  SharedPages pages;
  for (const process::SharedMemory& memory : memories) {
    AddressRanges& of_memory = pages[memory.inode];
    GCR_ASSIGN(of_memory, process::pages_of(memory));
    GCR_TRY(sink.take_memory(criu::images::shared_memory_images(memory.inode), of_memory,
                             process::reader_of(memory), last));
  }
  return pages;
}

bool OutgoingImages::lacks_round() const {
  if (!in_rounds() || rounds_ == 0) return in_rounds();
  const bool reads_much = shared_bytes_ >= kWorthOneMore;
  if (!changed_.tracks() && !reads_much) return false;
  const auto shrinks = [](std::uint64_t now, std::uint64_t before) {
    return now >= kWorthOneMore && now <= before / 2;
  };
  return rounds_ == 1 || shrinks(changed_.written_bytes(), written_before_) ||
         (reads_much && shrinks(sent_, sent_before_));
}

Status OutgoingImages::round(images::Sink& sink) {
  if (way_ == Way::kMemory) {
    ++rounds_;
    written_before_ = changed_.written_bytes();
    GCR_TRY(send_memory(sink));
    GCR_ASSIGN(const images::SentImages sent, sink.finish());
    sent_before_ = std::exchange(sent_, sent.sent_bytes - early_bytes_);
    early_bytes_ = sent.sent_bytes;
    return {};
  }
  prepared_.reset();  // it knows another parent
  const Status dumped = pre_dump(sink);
  if (dumped) return {};
  way_ = Way::kStream;
  reason_ = dumped.error().message();
  return {};
}

std::optional<process::PrivateMemory> OutgoingImages::beside_criu() const {
  if (way_ == Way::kPreDumps || !process::can_scan_pages()) return std::nullopt;
  return process::PrivateMemory(pid_, shared_->known);
}

const process::KnownMemory* OutgoingImages::known(pid_t pid) const {
  const auto found = shared_->known.find(pid);
  return found == shared_->known.end() ? nullptr : &found->second;
}

Status OutgoingImages::prepare() {
  if (way_ != Way::kPreDumps) {
    if (beside_criu()) {
      // CRIU asks when it has stopped all tasks.
      options_.leave_out = [pid = pid_, shared = shared_,
                            memory = std::optional<process::PrivateMemory>()](pid_t task) mutable {
        const std::lock_guard lock(shared->mutex);
        if (!memory) {
          memory.emplace(pid, shared->known);
          if (shared->begin_shared) shared->begin_shared();
        }
        memory->keep_joinable(task);
        const AddressRanges& ranges = shared->left_out[task] = memory->of(task);
        if (shared->begin && !shared->sent_early.contains(task)) {
          shared->sent_early[task] = shared->begin(task, ranges);
        }
        return criu::LeftOut{ranges, shared->shared_left_out};
      };
    }
    GCR_ASSIGN(prepared_, criu::PreparedDump::streaming(criu_, pid_, scratch_, options_));
    return {};
  }
  const fs::path parent = rounds_ == 0 ? fs::path() : directory_of_round(rounds_);
  GCR_ASSIGN(prepared_, criu::PreparedDump::to_directory(criu_, pid_, scratch_, parent, options_));
  return {};
}

/// What the rounds did not make true of `mappings`, beside CRIU, which has stopped everything and
/// asks for none of it: gives what was sent. CRIU writes to no memory but what it maps itself, and
/// for moments to code.
Result<AddressRanges> OutgoingImages::send_early(images::Sink& sink, pid_t pid,
                                                 const AddressRanges& mappings) const {
  GCR_ASSIGN(const pid_t inner, process::pid_in_namespace(pid));
  GCR_ASSIGN(const AddressRanges pages, process::present_pages(pid, mappings));
  AddressRanges changed = changed_.last_round(pid, mappings, pages);
  GCR_ASSIGN(const ReadMemory read, memory_of(pid));
  GCR_TRY(sink.take_memory(criu::images::memory_images(inner), changed, read, true));
  return changed;
}

/// The same of all shared memory; under shared_->mutex. What cannot be had goes through CRIU.
void OutgoingImages::begin_shared(images::Sink& sink) const {
  auto memories = process::shared_memories(procfs::stopped_tree(pid_), may_move());
  if (!memories || memories->empty()) return;
  for (const process::SharedMemory& memory : *memories) {
    shared_->shared_left_out.push_back({memory.device, memory.inode});
  }
  shared_->shared_sent = std::async(std::launch::async, [this, &sink, all = *std::move(memories)] {
                           return send_shared(sink, all, true);
                         }).share();
}

/// When the dump is over: which pages shared memory had.
Status OutgoingImages::send_shared_maps(images::Sink& sink) const {
  if (!shared_->shared_sent.valid()) return {};
  const Result<SharedPages>& sent = shared_->shared_sent.get();
  if (!sent) return sent.error();
  for (const auto& [inode, pages] : *sent) {
    const std::string name = criu::images::shared_memory_map(inode);
    GCR_ASSIGN(UniqueFd file, criu::images::in_memory(name, criu::images::image_of_ranges(pages)));
    GCR_TRY(sink.take(name, std::move(file)));
  }
  return {};
}

/// The memory of a stopped process: of `pages`, which it has, those that neither the rounds nor
/// send_early() made true. `check_all`: an Error if that was not enough.
Status OutgoingImages::send_last(images::Sink& sink, const std::string& name, pid_t pid,
                                 const AddressRanges& pages, bool check_all) const {
  GCR_ASSIGN(const ReadMemory read, memory_of(pid));
  for (const auto& [task, sent] : shared_->sent_early) sent.wait();  // before finish()
  if (shared_->shared_sent.valid()) shared_->shared_sent.wait();
  GCR_ASSIGN(const AddressRanges early, shared_->sent_early.at(pid).get());
  const auto changed = changed_.last_round(pid, shared_->left_out[pid], pages);
  const AddressRanges rest = difference(changed, early);
  if (!rest.empty()) {
    GCR_TRY(sink.finish());
    GCR_TRY(sink.take_memory(name, rest, read, true));
  }
  if (!check_all) return {};
  GCR_ASSIGN(const images::SentImages sent, sink.finish());
  GCR_TRY(sink.take_memory(name, difference(pages, changed), read, true));
  GCR_ASSIGN(const images::SentImages all_sent, sink.finish());
  if (all_sent.sent_bytes == sent.sent_bytes) return {};
  return Error(
      Code::kDataLoss,
      fmt::format("memory of process {} was written and the kernel does not know it", pid));
}

/// Before it is asked whether they may be moved.
Status OutgoingImages::open_memories() {
  for (const pid_t pid : procfs::stopped_tree(pid_)) {
    auto memory = process::open_memory(pid);
    if (!memory && memory.error().code() == Code::kNotFound) continue;
    GCR_TRY(memory);
    shared_->memories[pid] = *std::move(memory);
  }
  return {};
}

/// Of a process that CRIU has stopped. Where nothing was frozen before, it may have been born
/// since.
Result<ReadMemory> OutgoingImages::memory_of(pid_t pid) const {
  const auto opened = shared_->memories.find(pid);
  if (opened != shared_->memories.end()) return opened->second;
  return open_memory(pid);
}

Result<std::vector<process::ThreadRights>> OutgoingImages::dump(
    SourceJob& process, const LastLook& last, images::Sink& sink,
    const memory_files::Renamed& renamed) {
  const bool check_all = fault::armed("source.memory.check");
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->begin = [this, &sink](pid_t task, const AddressRanges& mappings) {
      return std::async(std::launch::async,
                        [this, &sink, task, mappings] { return send_early(sink, task, mappings); })
          .share();
    };
    shared_->begin_shared = [this, &sink] { begin_shared(sink); };
  }
  auto credentials = process.dump(
      {[&]() -> Status {
         GCR_TRY(open_memories());
         GCR_TRY(last.look());
         // What CRIU carries of shared memory; what is beside it has no zeros.
         const bool frozen = !options_.group.empty();
         if (frozen && !beside_criu()) process::drop_shared_zeros(procfs::stopped_tree(pid_));
         return {};
       },
       last.once_more},
      *prepared_,
      [&](const std::string& name, UniqueFd content) {
        return sink.take(name, std::move(content));
      },
      renamed,
      [&](const std::string& name, pid_t task, const AddressRanges& pages) {
        return send_last(sink, name, task, pages, check_all);
      });
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->begin = nullptr;
    shared_->begin_shared = nullptr;
    shared_->sent_early.clear();  // which waits
    if (shared_->shared_sent.valid()) shared_->shared_sent.wait();
  }
  if (!credentials) return credentials;
  GCR_TRY(send_shared_maps(sink));
  if (way_ == Way::kPreDumps) GCR_TRY(images::take_directory(sink, scratch_.string(), ""));
  return credentials;
}

}  // namespace gcr::migration
