// A target that restores nothing.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/migration/target/target.h"

namespace gcr::migration::test {

/// The calls and answers of a FakeTarget; `interrupted` may be read from any thread.
struct FakeTargetState {
  std::vector<std::string> calls;
  proto::PreflightRequest preflight_request;
  Result<proto::PreflightReply> preflight_reply;
  Result<proto::BuffersReply> buffers_reply;
  Result<proto::RestoreReply> vote;
  Result<commit::CommitAnswer> answer = commit::CommitAnswer();
  std::string aborted;
  std::function<void()> on_commit = [] {};
  std::function<void()> on_cancel = [] {};

  std::optional<Error> interrupted() {
    const std::lock_guard lock(mutex);
    return why;
  }

  std::mutex mutex;
  std::optional<Error> why;
};

/// A channel that accepts all data and sends nothing.
class FakeChannel : public transport::Channel {
 public:
  explicit FakeChannel(FakeTargetState& state) : state_(state) {}

  Status add_source(std::span<const std::byte>) override { return {}; }
  Status write(transport::RegionId, std::uint64_t, std::span<const std::byte>) override {
    return {};
  }
  Status flush() override { return {}; }
  void limit_rate(std::uint64_t) override {}
  void cancel() override { state_.on_cancel(); }
  unsigned useful_writers() const override { return 1; }
  transport::Statistics statistics() const override { return {}; }

 private:
  FakeTargetState& state_;
};

class FakeTarget : public Target {
 public:
  explicit FakeTarget(FakeTargetState& state) : state_(state) {}

  std::string name() const override { return "fake:1"; }
  std::string common_name() const override { return "fake"; }
  Result<proto::PreflightReply> preflight(const proto::PreflightRequest& request) override {
    state_.calls.push_back("preflight");
    state_.preflight_request = request;
    return state_.preflight_reply;
  }
  std::array<std::byte, 32> digest_key() override { return {}; }
  Result<PreparedTarget> prepare(const proto::PrepareRequest&) override {
    state_.calls.push_back("prepare");
    return PreparedTarget{};
  }
  transport::Channel& channel() override { return channel_; }
  Result<proto::BuffersReply> change(const proto::BuffersRequest&) override {
    state_.calls.push_back("change");
    return state_.buffers_reply;
  }
  Result<images::Sink*> image_sink(store::Compression, double) override {
    return Error(Code::kUnsupported, "it takes no images");
  }
  Result<proto::CarryReply> carry(const proto::CarryRequest&) override {
    state_.calls.push_back("carry");
    return proto::CarryReply();
  }
  void tell_paused(bool paused) override {
    state_.calls.emplace_back(paused ? "paused" : "goes on");
  }
  Result<proto::RestoreReply> restore(const proto::RestoreRequest&) override {
    state_.calls.push_back("restore");
    return state_.vote;
  }
  Result<commit::CommitAnswer> commit() override {
    state_.calls.push_back("commit");
    state_.on_commit();
    return state_.answer;
  }
  void abort(const std::string& reason) override {
    state_.calls.push_back("abort");
    state_.aborted = reason;
  }
  void interrupt(const Error& why) override {
    const std::lock_guard lock(state_.mutex);
    state_.why = why;
  }

 private:
  FakeTargetState& state_;
  FakeChannel channel_{state_};
};

}  // namespace gcr::migration::test
