// An access that answers as it is told, and notes what it was asked.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "migrate-agent/gpu_access/gpu_access.h"

namespace gcr::test {

/// The answers are set before it is used. Any thread.
class FakeAccess : public agent::GpuAccess {
 public:
  agent::AccessState state;
  std::vector<agent::LocalAllocation> has;
  Status answer_to_quiesce;
  Status answer_to_resume;
  Status answer_to_drop_pages;
  std::vector<Pages> dropped;
  std::vector<Pages> made_huge;

  /// The names of the methods that were called, once there are so many.
  std::vector<std::string> calls(std::size_t least = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return calls_.size() >= least; });
    return calls_;
  }

  Result<agent::AccessState> look(Milliseconds) override {
    note("look");
    return state;
  }
  Result<std::vector<agent::LocalAllocation>> allocations() override {
    note("allocations");
    return has;
  }
  Result<std::vector<agent::ExportedAllocation>> take(std::span<const std::uint64_t>) override {
    note("take");
    return Error(Code::kUnsupported, "a fake exports nothing");
  }
  Status quiesce(Milliseconds, Milliseconds) override {
    note("quiesce");
    return answer_to_quiesce;
  }
  Status resume() override {
    note("resume");
    return answer_to_resume;
  }
  Status detach() override {
    note("detach");
    return {};
  }
  Status attach(std::vector<std::pair<std::uint64_t, UniqueFd>>) override {
    note("attach");
    return {};
  }
  Result<std::uint64_t> drop_pages(std::span<const Pages> pages) override {
    note("drop_pages");
    GCR_TRY(answer_to_drop_pages);
    dropped.assign(pages.begin(), pages.end());
    std::uint64_t bytes = 0;
    for (const Pages& some : pages) bytes += some.bytes;
    return bytes;
  }
  Status use_huge_pages(std::span<const Pages> pages) override {
    note("use_huge_pages");
    made_huge.assign(pages.begin(), pages.end());
    return {};
  }

 private:
  void note(const char* call) {
    const std::lock_guard lock(mutex_);
    calls_.emplace_back(call);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> calls_;
};

}  // namespace gcr::test
