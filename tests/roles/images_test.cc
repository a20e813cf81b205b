#include "migrate-agent/roles/images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <mutex>

#include "src/base/units.h"

namespace gcr::agent {
namespace {

/// A transport that writes into mappings at once.
class DirectChannel : public transport::Channel {
 public:
  explicit DirectChannel(std::vector<UniqueMapping>& regions) : regions_(regions) {}
  Status write(transport::RegionId region, std::uint64_t offset,
               std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    std::memcpy(regions_.at(region).bytes().data() + offset, bytes.data(), bytes.size());
    ++statistics_.writes;
    statistics_.payload_bytes += bytes.size();
    return {};
  }
  Status flush() override { return {}; }
  void cancel() override {}
  unsigned lanes() const override { return 2; }
  transport::Statistics statistics() const override { return statistics_; }

 private:
  std::vector<UniqueMapping>& regions_;
  std::mutex mutex_;
  transport::Statistics statistics_;
};

class Images : public ::testing::Test {
 protected:
  Images()
      : from_(*ScratchDirectory::create("/tmp/gcr-images-" + std::to_string(::getpid()) + "/from")),
        to_(*ScratchDirectory::create(from_.path().parent_path() / "to")) {}
  ~Images() override { ::rmdir(from_.path().parent_path().c_str()); }

  void write(const std::string& name, const std::string& content) {
    std::ofstream(from_.path() / name, std::ios::binary) << content;
  }
  std::string received(const std::string& name) {
    std::ifstream file(to_.path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  ScratchDirectory from_;
  ScratchDirectory to_;
};

TEST_F(Images, FilesArriveWithContentAndHolesAndZerosAreNotSent) {
  std::string pages(3 * kChunkBytes + 12345, '\0');
  pages.replace(100, 5, "hello");
  pages.replace(kChunkBytes + 300 * kKiB, 5, "world");
  pages.back() = 'x';
  write("pages-1.img", pages);
  write("inventory.img", "tiny");
  write("empty.img", "");
  write("dump.log", "stays here");
  const auto files = list_images(from_.path());
  ASSERT_TRUE(files) << files.error().message();
  ASSERT_EQ(files->size(), 3U);

  std::vector<UniqueMapping> mappings;
  std::vector<transport::RegionId> regions;
  for (const ImageFile& file : *files) {
    regions.push_back(static_cast<transport::RegionId>(mappings.size()));
    auto mapping = create_image(to_.path(), file);
    ASSERT_TRUE(mapping) << mapping.error().message();
    mappings.push_back(std::move(*mapping));
  }
  DirectChannel channel(mappings);
  const auto sent = send_images(channel, from_.path(), *files, regions, 3);
  ASSERT_TRUE(sent) << sent.error().message();
  EXPECT_EQ(*sent, channel.statistics().payload_bytes);
  EXPECT_LT(*sent, 3 * 64 * kKiB + 100);
  EXPECT_EQ(received("pages-1.img"), pages);
  EXPECT_EQ(received("inventory.img"), "tiny");
  EXPECT_EQ(received("empty.img"), "");
}

TEST_F(Images, NamesThatLeaveTheDirectoryAreRefused) {
  for (const char* name : {"", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a b", "a\nb"}) {
    const auto created = create_image(to_.path(), {name, 10});
    ASSERT_FALSE(created) << name;
    EXPECT_EQ(created.error().code(), Code::kProtocol);
  }
  EXPECT_TRUE(std::filesystem::is_empty(to_.path()));
}

TEST_F(Images, ASecondFileOfTheSameNameIsRefused) {
  ASSERT_TRUE(create_image(to_.path(), {"core-1.img", 10}));
  EXPECT_FALSE(create_image(to_.path(), {"core-1.img", 10}));
}

}  // namespace
}  // namespace gcr::agent
