#include "migrate-agent/migration/source/stopped_memory.h"

#include <fmt/format.h>

#include <utility>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/pages/page_scan.h"

namespace gcr::migration {

Result<SharedPages> send_shared_memory(images::Sink& sink,
                                       const std::vector<process::SharedMemory>& memories,
                                       bool last) {
  SharedPages pages;
  for (const process::SharedMemory& memory : memories) {
    AddressRanges& of_memory = pages[memory.inode];
    GCR_ASSIGN(of_memory, process::pages_of(memory));
    GCR_TRY(sink.take_memory(criu::images::shared_memory_images(memory.inode), of_memory,
                             process::reader_of(memory), last));
  }
  return pages;
}

StoppedMemory::StoppedMemory(pid_t root, std::map<pid_t, process::KnownMemory> known,
                             const ChangedMemory& changed, process::MayMove may_move,
                             images::Sink& sink)
    : root_(root),
      memory_(root, std::move(known)),
      changed_(changed),
      may_move_(std::move(may_move)),
      sink_(sink),
      check_all_(fault::armed("source.memory.check")) {}

Status StoppedMemory::open() {
  for (const pid_t pid : procfs::stopped_tree(root_)) {
    auto memory = process::open_memory(pid);
    if (!memory && memory.error().code() == Code::kNotFound) continue;
    GCR_TRY(memory);
    opened_[pid] = *std::move(memory);
  }
  return {};
}

/// Where nothing was frozen before the dump, a task may have been born since open(): it is asked
/// whether that one may be moved.
Result<ReadMemory> StoppedMemory::reader_of(pid_t task) const {
  const auto opened = opened_.find(task);
  if (opened != opened_.end()) return opened->second;
  return process::open_memory(task, may_move_);
}

criu::LeftOut StoppedMemory::choose(pid_t task) {
  if (mappings_.empty()) begin_shared();
  memory_.keep_joinable(task);
  const AddressRanges& mappings = mappings_[task] = memory_.of(task);
  if (!sent_.contains(task)) {
    sent_[task] = std::async(std::launch::async, [this, task, mappings] {
                    return send_changed(task, mappings);
                  }).share();
  }
  return {mappings, shared_};
}

void StoppedMemory::begin_shared() {
  auto memories = process::shared_memories(procfs::stopped_tree(root_), may_move_);
  if (!memories || memories->empty()) return;
  for (const process::SharedMemory& memory : *memories) {
    shared_.push_back({memory.device, memory.inode});
  }
  shared_sent_ = std::async(std::launch::async, [this, all = *std::move(memories)] {
                   return send_shared_memory(sink_, all, true);
                 }).share();
}

/// Sends what the rounds did not make true of `mappings`; gives the pages that it has looked at.
Result<AddressRanges> StoppedMemory::send_changed(pid_t task, const AddressRanges& mappings) const {
  GCR_ASSIGN(const pid_t inner, process::pid_in_namespace(task));
  GCR_ASSIGN(const AddressRanges pages, process::present_pages(task, mappings));
  AddressRanges changed = changed_.last_round(task, mappings, pages);
  GCR_ASSIGN(const ReadMemory read, reader_of(task));
  GCR_TRY(sink_.take_memory(criu::images::memory_images(inner), changed, read, true));
  return changed;
}

void StoppedMemory::wait_until_sent() const {
  for (const auto& [task, sent] : sent_) sent.wait();
  if (shared_sent_.valid()) shared_sent_.wait();
}

Status StoppedMemory::take(const std::string& name, pid_t task, const AddressRanges& pages) {
  GCR_ASSIGN(const ReadMemory read, reader_of(task));
  wait_until_sent();  // finish() needs that
  GCR_ASSIGN(const AddressRanges sent, sent_.at(task).get());
  const AddressRanges changed = changed_.last_round(task, mappings_.at(task), pages);
  const AddressRanges rest = difference(changed, sent);
  if (!rest.empty()) {
    GCR_TRY(sink_.finish());
    GCR_TRY(sink_.take_memory(name, rest, read, true));
  }
  if (!check_all_) return {};
  GCR_ASSIGN(const images::SentImages before, sink_.finish());
  GCR_TRY(sink_.take_memory(name, difference(pages, changed), read, true));
  GCR_ASSIGN(const images::SentImages after, sink_.finish());
  if (after.sent_bytes == before.sent_bytes) return {};
  return Error(
      Code::kDataLoss,
      fmt::format("memory of process {} was written and the kernel does not know it", task));
}

Status StoppedMemory::send_shared_maps() {
  if (!shared_sent_.valid()) return {};
  const Result<SharedPages>& sent = shared_sent_.get();
  if (!sent) return sent.error();
  for (const auto& [inode, pages] : *sent) {
    const std::string name = criu::images::shared_memory_map(inode);
    GCR_ASSIGN(UniqueFd file, criu::images::in_memory(name, criu::images::image_of_ranges(pages)));
    GCR_TRY(sink_.take(name, std::move(file)));
  }
  return {};
}

}  // namespace gcr::migration
