// What all conformance tests share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/base/units.h"
#include "tests/conformance/transport_under_test.h"

namespace gcr::test {

using Bytes = std::vector<std::byte>;

/// The limit for everything that must end by itself.
inline constexpr std::chrono::seconds kBound{120};

inline Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(round_up(size, 8));
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = random();
    std::memcpy(&bytes[at], &word, sizeof word);
  }
  bytes.resize(size);
  return bytes;
}

/// The outcome of `call` on a separate thread. A call that does not end fails the whole program:
/// nothing could be tested any more.
class Outcome {
 public:
  explicit Outcome(std::function<Status()> call)
      : future_(std::async(std::launch::async, std::move(call))) {}

  bool is_there() const {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  Status get() {
    if (future_.wait_for(kBound) != std::future_status::ready) {
      ADD_FAILURE() << "a call did not end within " << kBound.count() << " s";
      std::abort();
    }
    return future_.get();
  }

 private:
  std::future<Status> future_;
};

/// As std::latch, and may be counted down too often. A wait that does not end fails the whole
/// program, as with Outcome: the thread that should have opened it may have failed before.
class Latch {
 public:
  explicit Latch(int count) : count_(count) {}

  void count_down() {
    const std::lock_guard lock(mutex_);
    if (--count_ <= 0) opened_.notify_all();
  }

  bool try_wait() {
    const std::lock_guard lock(mutex_);
    return count_ <= 0;
  }

  void wait() {
    std::unique_lock lock(mutex_);
    if (opened_.wait_for(lock, kBound, [this] { return count_ <= 0; })) return;
    ADD_FAILURE() << "nothing came within " << kBound.count() << " s";
    std::abort();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  int count_;
};

/// Whether `condition` becomes true within the limit.
inline bool becomes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kBound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline testing::AssertionResult ok(const Status& status) {
  if (status) return testing::AssertionSuccess();
  return testing::AssertionFailure() << status.error().message();
}

inline testing::AssertionResult fails_with(const Status& status, Code code,
                                           const std::string& text = "") {
  if (status) return testing::AssertionFailure() << "it succeeded";
  const bool same =
      status.error().code() == code && status.error().message().find(text) != std::string::npos;
  return (same ? testing::AssertionSuccess() : testing::AssertionFailure())
         << to_string(status.error().code()) << ": " << status.error().message();
}

/// One transport per test; `start` returns a connected transfer with one region.
class ConformanceTest : public testing::TestWithParam<const TransportUnderTest*> {
 protected:
  static constexpr transport::RegionId kRegion = 5;

  /// `loses_peers`: the suite waits for peer timeouts, so all its transfers have short ones.
  explicit ConformanceTest(bool loses_peers = false) : loses_peers_(loses_peers) {}

  void start(TransferOptions options, std::size_t region_bytes) {
    prepare(std::move(options), region_bytes);
    ASSERT_TRUE(ok(transfer_->connect()));
  }

  void prepare(TransferOptions options, std::size_t region_bytes) {
    landed_.assign(region_bytes, std::byte{0xee});
    transfer_ = make(std::move(options));
    ASSERT_TRUE(ok(transfer_->receiver().add_region(kRegion, landed_)));
  }

  /// A transfer with the suite's timeouts; thread-safe.
  std::unique_ptr<Transfer> make(TransferOptions options) const {
    options.impatient = loses_peers_;
    return GetParam()->make(std::move(options));
  }

  static Capabilities capabilities() { return GetParam()->capabilities(); }

  /// Whether `status` is the receiver's refusal of a write, with `code` and `text` if the transport
  /// can deliver them.
  static testing::AssertionResult refused(const Status& status, Code code,
                                          const std::string& text) {
    if (capabilities().says_why_refused) return fails_with(status, code, text);
    if (!status && status.error().code() == Code::kNotFound) return testing::AssertionSuccess();
    return fails_with(status, Code::kInvalidArgument);
  }

  transport::Channel& channel() { return transfer_->channel(); }
  transport::Receiver& receiver() { return transfer_->receiver(); }

  /// A write and a flush, until one fails.
  Status write_and_flush(std::uint64_t offset, std::span<const std::byte> bytes) {
    GCR_TRY(channel().write(kRegion, offset, bytes));
    return channel().flush();
  }

  /// Writes the same bytes repeatedly to `places` places in turn, until a write fails. Lanes are
  /// used in turn too, so with as many places as lanes no two lanes write to one place.
  Status write_forever(std::span<const std::byte> bytes, std::uint64_t places) {
    for (std::uint64_t i = 0;; ++i) {
      GCR_TRY(channel().write(kRegion, i % places * bytes.size(), bytes));
    }
  }

  Bytes landed_;  ///< outlives the transfer
  std::unique_ptr<Transfer> transfer_;

 private:
  bool loses_peers_;
};

#define GCR_CONFORMANCE_SUITE(Suite)                                              \
  INSTANTIATE_TEST_SUITE_P(Conformance, Suite,                                    \
                           testing::ValuesIn(gcr::test::transports_under_test()), \
                           [](const auto& info) { return info.param->name(); })

}  // namespace gcr::test
