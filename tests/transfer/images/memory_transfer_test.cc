// Memory of processes from its ranges to sparse files over a real TCP connection.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "tests/transfer/images/transfer_fixture.h"

namespace gcr::images::test {
namespace {

using Pages = std::map<std::uint64_t, std::string>;  // by address

constexpr std::uint64_t kHighAddress = 0x7f0000000000;

std::string zeros(std::size_t pages) { return std::string(pages * kPageBytes, '\0'); }

/// The memory of a process: addresses outside its ranges cannot be read.
class Memory {
 public:
  Memory& add(std::uint64_t address, std::string content) {
    contents_[address] = std::move(content);
    return *this;
  }

  std::vector<AddressRange> ranges() const {
    std::vector<AddressRange> found;
    for (const auto& [address, content] : contents_) {
      found.push_back({address, address + content.size()});
    }
    return found;
  }

  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const AddressRange& range : ranges()) sum += range.bytes();
    return sum;
  }

  Pages pages_with_data() const {
    Pages found;
    for (const auto& [address, content] : contents_) {
      for (std::size_t at = 0; at < content.size(); at += kPageBytes) {
        std::string page = content.substr(at, kPageBytes);
        if (page != zeros(1)) found[address + at] = std::move(page);
      }
    }
    return found;
  }

  Status read(std::uint64_t address, std::span<std::byte> bytes) const {
    auto range = contents_.upper_bound(address);
    if (range == contents_.begin()) return Error(Code::kNotFound, "below all ranges");
    --range;
    const std::uint64_t at = address - range->first;
    if (at + bytes.size() > range->second.size()) return Error(Code::kNotFound, "not in a range");
    std::memcpy(bytes.data(), range->second.data() + at, bytes.size());
    return {};
  }

 private:
  std::map<std::uint64_t, std::string> contents_;  // by address
};

class MemoryImages : public Images {
 protected:
  Status take_memory(const std::string& name, const Memory& memory, bool last = true) {
    return sender_->take_memory(
        name, memory.ranges(),
        [&](auto address, auto bytes) { return memory.read(address, bytes); }, last);
  }

  /// A round that is not the last; returns how much it sends.
  std::uint64_t round(const std::string& name, const Memory& memory) {
    EXPECT_TRUE(take_memory(name, memory, false));
    const auto sent = sender_->finish();
    EXPECT_TRUE(sent);
    return sent ? sent->sent_bytes - std::exchange(sent_before_, sent->sent_bytes) : 0;
  }

  /// The files of a memory.
  std::vector<std::filesystem::path> files_of(const std::string& name) const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      if (entry.path().filename().string().starts_with(name + "-")) found.push_back(entry.path());
    }
    EXPECT_LE(found.size(), 8u);
    return found;
  }

  /// The data of the files that is not a hole; no two of them have the same page.
  Pages received_pages(const std::string& name) const {
    Pages found;
    for (const auto& path : files_of(name)) {
      Pages pages = pages_in(path);
      found.merge(pages);
      EXPECT_TRUE(pages.empty()) << path;
    }
    return found;
  }

  std::uint64_t received_size(const std::string& name) const {
    std::uint64_t size = 0;
    for (const auto& path : files_of(name)) {
      size = std::max<std::uint64_t>(size, std::filesystem::file_size(path));
    }
    return size;
  }

  std::uint64_t sent_before_ = 0;

 private:
  static Pages pages_in(const std::filesystem::path& path) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    Pages found;
    for (off_t at = 0; (at = ::lseek(file.get(), at, SEEK_DATA)) >= 0;) {
      const off_t end = ::lseek(file.get(), at, SEEK_HOLE);
      for (; at < end; at += static_cast<off_t>(kPageBytes)) {
        std::string page(kPageBytes, '\0');
        EXPECT_EQ(::pread(file.get(), page.data(), page.size(), at), kPageBytes);
        found[static_cast<std::uint64_t>(at)] = std::move(page);
      }
    }
    EXPECT_EQ(errno, ENXIO);
    return found;
  }
};

TEST_F(MemoryImages, RangesArriveAtTheirAddresses) {
  connect(3, 4);
  const std::uint64_t shared = 64 * kMiB;  // a window with parts of three ranges
  Memory memory;
  memory.add(4 * kMiB + 5 * kPageBytes, noise(3 * kMiB, 1));
  memory.add(shared - kMiB, noise(kMiB + kPageBytes, 2));
  memory.add(shared + 2 * kPageBytes, noise(kPageBytes, 3));
  memory.add(shared + 9 * kPageBytes, noise(2 * kMiB, 4));
  memory.add(kHighAddress, noise(5 * kMiB, 5));
  memory.add(kMaxFileBytes - 2 * kPageBytes, noise(kPageBytes, 6));
  const Status taken = take_memory("memory-123", memory);
  ASSERT_TRUE(taken) << taken.error().message();
  const SentImages sent = finish();
  EXPECT_EQ(sent.raw_bytes, memory.bytes());
  EXPECT_EQ(sent.zero_bytes, 0u);
  EXPECT_EQ(received_pages("memory-123"), memory.pages_with_data());
  EXPECT_EQ(received_size("memory-123"), kMaxFileBytes);
}

TEST_F(MemoryImages, ZeroPagesAreHolesAndCounted) {
  connect(2, 2);
  Memory memory;
  memory.add(kMiB - 3 * kPageBytes, zeros(2) + noise(2 * kPageBytes, 1) + zeros(3));
  memory.add(kHighAddress + kPageBytes, zeros(3 * kPagesPerWindow));
  ASSERT_TRUE(take_memory("memory-1", memory));
  const SentImages sent = finish();
  EXPECT_EQ(sent.raw_bytes, (7 + 3 * kPagesPerWindow) * kPageBytes);
  EXPECT_EQ(sent.zero_bytes, (5 + 3 * kPagesPerWindow) * kPageBytes);
  EXPECT_EQ(sent.sent_bytes, 2 * (kPageBytes + kBlockHeaderBytes));
  EXPECT_EQ(received_pages("memory-1"), memory.pages_with_data());
  EXPECT_EQ(received_size("memory-1"), kHighAddress + 4 * kMiB);
}

TEST_F(MemoryImages, MemoryWithoutRangesHasNoImage) {
  connect(1, 1);
  ASSERT_TRUE(take_memory("memory-1", Memory()));
  EXPECT_EQ(finish().raw_bytes, 0u);
  EXPECT_TRUE(files_of("memory-1").empty());
}

TEST_F(MemoryImages, LaterRoundSendsChangesAndNewZeros) {
  connect(2, 3);
  const std::string before = noise(600 * kPageBytes, 1);
  const std::string appeared = noise(2 * kPageBytes, 2);
  std::string now = before;
  now.replace(3 * kPageBytes, kPageBytes, noise(kPageBytes, 3));
  now.replace(500 * kPageBytes, 2 * kPageBytes, zeros(2));
  const std::uint64_t block = kBlockHeaderBytes;
  EXPECT_EQ(round("memory-1", Memory().add(kHighAddress, before)), 600 * kPageBytes + 3 * block);
  EXPECT_EQ(round("memory-1", Memory().add(kHighAddress, before)), 0u);
  EXPECT_EQ(round("memory-1", Memory().add(kHighAddress, now)), 3 * kPageBytes + 2 * block);
  EXPECT_EQ(round("memory-1", Memory().add(kHighAddress, now)), 0u);
  // Data that is no longer in the ranges stays in the images; data that was never sent is sent.
  const Memory last =
      Memory().add(kHighAddress + kPageBytes, now.substr(kPageBytes)).add(2 * kMiB, appeared);
  ASSERT_TRUE(take_memory("memory-1", last));
  const SentImages sent = finish();
  EXPECT_EQ(sent.sent_bytes - sent_before_, 2 * kPageBytes + block);
  EXPECT_EQ(sent.raw_bytes, last.bytes());
  EXPECT_EQ(sent.zero_bytes, 2 * kPageBytes);
  Pages expected = Memory().add(kHighAddress, now).add(2 * kMiB, appeared).pages_with_data();
  for (const std::uint64_t page : {500u, 501u}) {
    expected[kHighAddress + page * kPageBytes] = zeros(1);
  }
  EXPECT_EQ(received_pages("memory-1"), expected);
}

TEST_F(MemoryImages, ConcurrentMemoriesAndFilesArriveWhole) {
  connect(3, 4, store::Compression::kLz4);
  const std::string file = text(3 * kMiB, 9);
  std::map<std::string, Memory> memories;
  for (std::uint64_t i = 1; i <= 6; ++i) {
    memories["memory-" + std::to_string(i)]
        .add(i * kPageBytes, text(700 * kPageBytes, i))
        .add(kHighAddress + i * kMiB, zeros(i) + noise(300 * kPageBytes, i));
  }
  {
    std::vector<std::jthread> takers;
    for (const auto& [name, memory] : memories) {
      takers.emplace_back([&] { EXPECT_TRUE(take_memory(name, memory)); });
    }
    takers.emplace_back([&] { EXPECT_TRUE(take("pages-1.img", file)); });
  }
  const std::size_t sent_files = finish().files.size();
  std::size_t received_files = 1;
  for (const auto& [name, memory] : memories) {
    EXPECT_EQ(received_pages(name), memory.pages_with_data()) << name;
    received_files += files_of(name).size();
  }
  EXPECT_EQ(sent_files, received_files);
  EXPECT_EQ(received("pages-1.img"), file);
}

TEST_F(MemoryImages, FailedReadEndsTheSender) {
  connect(3, 2);
  std::atomic<int> reads = 0;
  const std::vector<AddressRange> ranges = {{kHighAddress, kHighAddress + 64 * kMiB}};
  const ReadMemory read = [&](std::uint64_t address, std::span<std::byte> bytes) -> Status {
    ++reads;
    if (address == kHighAddress + 20 * kMiB) return Error(Code::kNotFound, "the process is gone");
    std::ranges::fill(bytes, std::byte{'x'});
    return {};
  };
  const Status taken = sender_->take_memory("memory-1", ranges, read, true);
  const int reads_until_return = reads;
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), Code::kNotFound) << taken.error().message();
  const auto sent = sender_->finish();
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code(), Code::kNotFound) << sent.error().message();
  EXPECT_FALSE(take("a.img", "more"));
  EXPECT_FALSE(sender_->take_memory("memory-2", ranges, read, true));
  EXPECT_EQ(reads, reads_until_return);
}

TEST_F(MemoryImages, BrokenNetworkEndsTheSender) {
  connect(2, 2);
  transfer_->cut_after(static_cast<std::int64_t>(5 * kMiB));
  const Memory memory = Memory().add(kHighAddress, noise(64 * kMiB, 1));
  const Status taken = take_memory("memory-1", memory);
  EXPECT_FALSE(sender_->finish());
  EXPECT_FALSE(take_memory("memory-2", memory));
}

TEST_F(MemoryImages, AddressesBeyondTheLargestImageAreRefused) {
  connect(1, 1);
  const Status taken = take_memory("memory-1", Memory().add(kMaxFileBytes - kPageBytes, zeros(2)));
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), Code::kUnsupported);
  EXPECT_TRUE(finish().files.empty());
}

}  // namespace
}  // namespace gcr::images::test
