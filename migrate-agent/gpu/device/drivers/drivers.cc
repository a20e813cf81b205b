#include "migrate-agent/gpu/device/drivers/drivers.h"

#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/gpu/device/cuda/driver.h"
#include "migrate-agent/gpu/device/hip/driver.h"
#include "src/base/log.h"

namespace gcr::device {
namespace {

using Drivers = std::vector<std::shared_ptr<const Driver>>;

bool has(const Driver& driver, const Uuid& gpu) {
  return std::ranges::find(driver.gpus(), gpu, &GpuInfo::uuid) != driver.gpus().end();
}

/// The control of a process that has the libraries of several drivers. A driver that answers
/// kNotFound is not used by the process, and is skipped.
class JoinedControl final : public Control {
 public:
  struct Part {
    std::shared_ptr<const Driver> driver;
    std::unique_ptr<Control> control;
  };
  explicit JoinedControl(std::vector<Part> parts) : parts_(std::move(parts)) {}

  bool goes_with_dump() const override {
    return std::ranges::any_of(parts_,
                               [](const Part& one) { return one.control->goes_with_dump(); });
  }

  /// The first driver's state that is not kRunning: that is what a roll-back has to undo.
  Result<State> state() const override {
    Result<State> found = unused();
    for (const Part& part : parts_) {
      auto state = part.control->state();
      if (is_unused(state)) continue;
      if (!state || *state != State::kRunning) return state;
      found = state;
    }
    return found;
  }

  Status lock(std::chrono::milliseconds timeout) const override {
    return all([&](const Part& part) { return part.control->lock(timeout); });
  }
  Status checkpoint() const override {
    return all([](const Part& part) { return part.control->checkpoint(); });
  }
  Status restore(const std::vector<GpuPair>& pairs) const override {
    return all([&](const Part& part) {
      std::vector<GpuPair> theirs = pairs;
      std::erase_if(theirs, [&](const GpuPair& pair) { return !has(*part.driver, pair.to); });
      return part.control->restore(theirs);
    });
  }
  Status unlock() const override {
    return all([](const Part& part) { return part.control->unlock(); });
  }

  Result<pid_t> restore_thread() const override {
    for (const Part& part : parts_) {
      const auto thread = part.control->restore_thread();
      if (is_unused(thread)) continue;
      if (!thread || *thread != 0) return thread;
    }
    return pid_t{0};
  }

 private:
  static Error unused() { return {Code::kNotFound, "the process uses no GPU"}; }

  template <class Any>
  static bool is_unused(const Any& result) {
    return !result && result.error().code() == Code::kNotFound;
  }

  Status all(const auto& step) const {
    bool any = false;
    for (const Part& part : parts_) {
      const Status done = step(part);
      if (!done && !is_unused(done)) return done;
      any = any || done;
    }
    if (!any) return unused();
    return {};
  }

  const std::vector<Part> parts_;
};

class JoinedDriver final : public Driver {
 public:
  explicit JoinedDriver(Drivers drivers) : drivers_(std::move(drivers)) {
    for (const auto& driver : drivers_) {
      gpus_.insert(gpus_.end(), driver->gpus().begin(), driver->gpus().end());
    }
  }

  const std::vector<GpuInfo>& gpus() const override { return gpus_; }

  Result<std::shared_ptr<Gpu>> open(const GpuInfo& gpu) const override {
    for (const auto& driver : drivers_) {
      if (has(*driver, gpu.uuid)) return driver->open(gpu);
    }
    return Error(Code::kNotFound, fmt::format("this host has no {}", gpu_name(gpu.uuid)));
  }

  std::unique_ptr<Control> control(pid_t pid) const override {
    std::vector<JoinedControl::Part> parts;
    for (const auto& driver : drivers_) {
      if (driver->is_in(pid)) parts.push_back({driver, driver->control(pid)});
    }
    return std::make_unique<JoinedControl>(std::move(parts));
  }

  bool is_in(pid_t pid) const override {
    return std::ranges::any_of(drivers_, [&](const auto& driver) { return driver->is_in(pid); });
  }

 private:
  const Drivers drivers_;
  std::vector<GpuInfo> gpus_;
};

/// The reasons of all, with the code of the first driver that exists.
Error no_driver(const std::vector<Error>& errors) {
  Code code = Code::kNotFound;
  std::string all;
  for (const Error& error : errors) {
    if (code == Code::kNotFound) code = error.code();
    all += (all.empty() ? "" : "; ") + error.message();
  }
  return {code, all};
}

}  // namespace

Result<std::shared_ptr<const Driver>> join_drivers(std::vector<LoadedDriver> loaded) {
  Drivers drivers;
  std::vector<Error> errors;
  for (LoadedDriver& one : loaded) {
    if (one) drivers.push_back(std::move(*one));
    if (!one) errors.push_back(one.error());
  }
  if (drivers.empty()) return no_driver(errors);
  for (const Error& error : errors) {
    if (error.code() == Code::kNotFound || error.code() == Code::kUnavailable) continue;
    spdlog::warn("some GPUs of this host are not used: {}", error.message());
  }
  if (drivers.size() == 1) return std::move(drivers.front());
  return std::make_shared<const JoinedDriver>(std::move(drivers));
}

LoadedDriver load_drivers(const std::filesystem::path& sysfs) {
  std::error_code error;
  const bool has_amd = std::filesystem::exists(sysfs / "class/kfd", error);
  return join_drivers(
      {cuda::load(),
       has_amd ? hip::load()
               : Error(Code::kNotFound, "this host's kernel has no driver for AMD GPUs")});
}

}  // namespace gcr::device
