// One thread takes all chunks that are waiting, starts a copy for each, and waits once for all of
// them. Chunks that land meanwhile wait for the next turn. So the batches grow with the load, and a
// place is free again as soon as its batch is in VRAM.
#include "migrate-agent/gpu/mover/upload_queue.h"

#include <fmt/format.h>

#include <set>

#include "src/base/units.h"

namespace gcr::mover {

UploadQueue::UploadQueue() : thread_([this] { run(); }) {}

UploadQueue::~UploadQueue() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

Status UploadQueue::add(device::Stream& stream, device::Address to, transport::Place place) {
  const std::lock_guard lock(mutex_);
  if (error_) return *error_;
  waiting_.push_back({&stream, to, std::move(place)});
  changed_.notify_all();
  return {};
}

Status UploadQueue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !copying_; });
  if (error_) return *error_;
  return {};
}

void UploadQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    std::vector<Upload> uploads = std::exchange(waiting_, {});
    copying_ = true;
    lock.unlock();
    const Status copied = copy(uploads);
    uploads.clear();  // frees the places
    lock.lock();
    copying_ = false;
    if (!copied && !error_) error_ = copied.error();
    changed_.notify_all();
  }
}

/// No copy is in flight afterwards, even after an error.
Status UploadQueue::copy(const std::vector<Upload>& uploads) {
  Status result;
  std::set<device::Stream*> streams;
  for (const auto& [stream, to, place] : uploads) {
    streams.insert(stream);
    const Status copied = stream->copy_in(to, place.bytes().data(), place.bytes().size());
    if (copied) continue;
    result = copied.error().while_doing(
        fmt::format("cannot upload {} to VRAM", format_bytes(place.bytes().size())));
    break;
  }
  for (device::Stream* const stream : streams) {
    const Status done = stream->synchronize();
    if (!done && result) result = done.error().while_doing("cannot upload to VRAM");
  }
  return result;
}

}  // namespace gcr::mover
