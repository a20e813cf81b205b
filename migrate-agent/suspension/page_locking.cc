#include "migrate-agent/suspension/page_locking.h"

#include <utility>

namespace gcr::agent {

PageLocking::PageLocking(std::shared_ptr<device::Gpu> gpu, std::vector<std::span<std::byte>> pieces)
    : gpu_(std::move(gpu)),
      pieces_(std::move(pieces)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

void PageLocking::run(const std::stop_token& stop) {
  for (const std::span<std::byte> piece : pieces_) {
    if (stop.stop_requested()) return;
    auto locked = gpu_->page_lock(piece);
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
    if (!locked) {
      failed_ = locked.error();
      return;
    }
    locked_.push_back(std::move(*locked));
  }
}

Status PageLocking::wait_for(std::size_t piece) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return locked_.size() > piece || !failed_; });
  return locked_.size() > piece ? Status() : failed_;
}

}  // namespace gcr::agent
