#include "tests/process/layer/fixture.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gcr::layer::test {
namespace {

namespace fs = std::filesystem;

constexpr char kImage[] = R"(
  mkdir -p etc usr/bin usr/lib/deep/deeper data tmp run
  echo root > etc/passwd
  echo old > etc/hosts
  touch etc/resolv.conf
  seq 60000 > big
  echo tool > usr/bin/tool; chmod 755 usr/bin/tool
  echo one > usr/lib/one; echo two > usr/lib/two; ln usr/lib/two usr/lib/second
  echo deep > usr/lib/deep/deeper/file; ln -s deeper usr/lib/deep/link
  echo both > hard1; ln hard1 hard2
  ln -s etc/passwd link
  chmod 1777 tmp
  find . -exec touch -h -d '2020-02-02 02:02:02.123456789' {} +
)";

}  // namespace

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

UniqueFd memory_file() { return UniqueFd(::memfd_create("pack", MFD_CLOEXEC)); }

TwoContainers::TwoContainers() {
  fs::create_directory(image_);
  const std::string script = "cd " + image_.string() + " && set -e && " + kImage;
  if (::system(script.c_str()) != 0) throw std::runtime_error("cannot make the image");
}

void TwoContainers::start(const ContainerOptions& source, const ContainerOptions& destination) {
  const fs::path home = machine_.path() / std::to_string(pairs_++);
  before_ = {};
  source_ = std::make_unique<Container>(image_, home / "source", source);
  destination_ = std::make_unique<Container>(image_, home / "destination", destination);
  auto from = trees_of(source_->init());
  auto to = trees_of(destination_->init());
  ASSERT_TRUE(from) << from.error().message();
  ASSERT_TRUE(to) << to.error().message();
  from_ = std::move(*from);
  to_ = std::move(*to);
}

void TwoContainers::start(const std::string& overlay) {
  ContainerOptions options;
  options.overlay = overlay;
  start(options, options);
}

void TwoContainers::use_tree(const std::string& point) {
  ASSERT_NE(find(from_, point), nullptr);
  ASSERT_NE(find(to_, point), nullptr);
  point_ = point;
  before_ = {};
}

Changes TwoContainers::next_changes(const KnownFiles& known) const {
  const auto now = scan(*find(from_, point_), kLimits, known);
  if (!now) throw std::runtime_error(now.error().message());
  return changes(before_, *now);
}

Result<UniqueFd> TwoContainers::pack(const Changes& changes, std::uint64_t max_bytes) const {
  UniqueFd file = memory_file();
  GCR_TRY(write_pack(*find(from_, point_), changes, file.get(), max_bytes));
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

Result<Notes> TwoContainers::carry(const KnownFiles& known) {
  GCR_ASSIGN(Snapshot now, scan(*find(from_, point_), kLimits, known));
  GCR_ASSIGN(const UniqueFd file, pack(changes(before_, now)));
  before_ = std::move(now);
  return apply_pack(*find(to_, point_), file.get(), kLimits);
}

void TwoContainers::set(const std::string& path, const std::string& name,
                        const std::string& value) const {
  const fs::path file = at_source(path);
  ASSERT_EQ(::lsetxattr(file.c_str(), name.c_str(), value.data(), value.size(), 0), 0)
      << name << ": " << errno;
}

std::string TwoContainers::refusal() const {
  const auto found = scan(*find(from_, point_), kLimits);
  return found ? "" : found.error().message();
}

void TwoContainers::expect_carried() {
  const auto carried = carry();
  ASSERT_TRUE(carried) << carried.error().message();
  expect_same();
}

void TwoContainers::expect_same() const {
  EXPECT_THAT(differences(listing_of(source_->root().string() + point_),
                          listing_of(destination_->root().string() + point_)),
              testing::IsEmpty());
}

}  // namespace gcr::layer::test
