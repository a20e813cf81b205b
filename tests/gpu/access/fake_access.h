// An access and a gate that answer as configured and record their calls.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "migrate-agent/gpu/access/gates.h"
#include "migrate-agent/gpu/access/gpu_access.h"

namespace gcr::test {

/// The names of the methods that were called. Callable from any thread.
class Calls {
 public:
  void note(const char* call) {
    const std::lock_guard lock(mutex_);
    calls_.emplace_back(call);
    changed_.notify_all();
  }

  /// Returns once this many were called.
  std::vector<std::string> wait_for(std::size_t least = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return calls_.size() >= least; });
    return calls_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> calls_;
};

/// Set the answers before use. Methods may be called from any thread.
class FakeGate : public gpu::Gate {
 public:
  Status answer_to_quiesce;
  Status answer_to_resume;
  Calls calls;

  Status quiesce(Milliseconds, Milliseconds) override {
    calls.note("quiesce");
    return answer_to_quiesce;
  }
  Status resume() override {
    calls.note("resume");
    return answer_to_resume;
  }
};

/// As FakeGate.
class FakeAccess : public gpu::GpuAccess {
 public:
  gpu::AccessState state;
  std::vector<gpu::LocalAllocation> has;
  Status answer_to_drop_pages;
  std::vector<Pages> dropped;
  std::vector<Pages> made_huge;

  Calls calls;

  Result<gpu::AccessState> read_state(Milliseconds) override {
    calls.note("read_state");
    return state;
  }
  Result<std::vector<gpu::LocalAllocation>> allocations() override {
    calls.note("allocations");
    return has;
  }
  Result<std::vector<gpu::ExportedAllocation>> take(std::span<const std::uint64_t>) override {
    calls.note("take");
    return Error(Code::kUnsupported, "a fake exports nothing");
  }
  Result<gpu::Held> hold(Microseconds, Milliseconds) override {
    calls.note("hold");
    return gpu::Held{.quiet = true};
  }
  Result<gpu::Held> step(Microseconds) override {
    calls.note("step");
    return gpu::Held{.quiet = true};
  }
  Status resume() override {
    calls.note("resume");
    return {};
  }
  Status detach() override {
    calls.note("detach");
    return {};
  }
  Status attach(std::vector<std::pair<std::uint64_t, UniqueFd>>) override {
    calls.note("attach");
    return {};
  }
  Result<std::uint64_t> drop_pages(std::span<const Pages> pages) override {
    calls.note("drop_pages");
    GCR_TRY(answer_to_drop_pages);
    dropped.assign(pages.begin(), pages.end());
    std::uint64_t bytes = 0;
    for (const Pages& some : pages) bytes += some.bytes;
    return bytes;
  }
  Status use_huge_pages(std::span<const Pages> pages) override {
    calls.note("use_huge_pages");
    made_huge.assign(pages.begin(), pages.end());
    return {};
  }
};

}  // namespace gcr::test
