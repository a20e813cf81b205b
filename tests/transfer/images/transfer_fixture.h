// What the tests of the sender share: a store at the other end of a real TCP connection.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "migrate-agent/transfer/images/sender.h"
#include "migrate-agent/transfer/images/store.h"
#include "tests/conformance/transport_under_test.h"
#include "tests/transfer/images/support.h"

namespace gcr::images::test {

inline constexpr transport::RegionId kRegion = 9;

/// A sender and a store with a TCP connection between them.
class Images : public StoreFixture {
 protected:
  // The writers of take() find their pipes broken as CRIU would.
  Images() { ::signal(SIGPIPE, SIG_IGN); }

  void connect(unsigned slots, unsigned lanes,
               store::Compression compression = store::Compression::kNone,
               std::uint64_t max_bytes = kGiB) {
    store_ = make_store(slots, max_bytes);
    transfer_ = gcr::test::transports_under_test().front()->make(
        {.lanes = lanes, .on_landed = [this](auto, std::uint64_t offset, std::uint64_t length) {
           return store_->landed(offset, length);
         }});
    ASSERT_TRUE(transfer_->receiver().add_region(kRegion, store_->ring()));
    const Status connected = transfer_->connect();
    ASSERT_TRUE(connected) << connected.error().message();
    auto sender = ImageSender::create(transfer_->channel(),
                                      {kRegion, store_->ring().size(), compression, /*link=*/0});
    ASSERT_TRUE(sender) << sender.error().message();
    sender_ = std::move(*sender);
  }

  /// Through a pipe, as CRIU writes.
  Status take(const std::string& name, const std::string& content) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    UniqueFd to(ends[1]);
    std::jthread writer([&] {
      for (std::size_t at = 0; at < content.size();) {
        const ssize_t put = ::write(to.get(), content.data() + at, content.size() - at);
        if (put <= 0) break;
        at += static_cast<std::size_t>(put);
      }
      to.reset();
    });
    return sender_->take(name, UniqueFd(ends[0]));
  }

  SentImages finish() {
    auto sent = sender_->finish();
    EXPECT_TRUE(sent) << sent.error().message();
    if (!sent) return {};
    std::vector<ImageFile> files;
    for (const ImageFile& file : sent->files)
      files.push_back({file.name, file.id, file.size_bytes, file.digest});
    const Status completed = store_->complete(files);
    EXPECT_TRUE(completed) << completed.error().message();
    return *sent;
  }

  std::unique_ptr<ImageStore> store_;
  std::unique_ptr<gcr::test::Transfer> transfer_;
  std::unique_ptr<ImageSender> sender_;  // is sent first
};

}  // namespace gcr::images::test
