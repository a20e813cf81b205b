// RestoreRequest, as the destination handles it: digests of the existing buffers, and the names of
// image files. Only regular files below its directory are created.
#include <unistd.h>

#include <filesystem>

#include "migrate-agent/migration/destination/request_checks.h"
#include "migrate-agent/transfer/images/scratch.h"
#include "migrate-agent/transfer/images/store.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/requests.h"

namespace gcr::fuzz {
namespace {

void take_digests(const proto::RestoreRequest& request, const gpu::Job& there) {
  const auto digests = migration::check_digests(request.digests(), there);
  if (!digests) return;
  require(digests->size() == there.allocations().size(), "every buffer has its digests");
  for (const auto& [id, buffer] : there.allocations()) {
    require(digests->at(id).size() == buffer.size_bytes / kChunkBytes, "a digest for each chunk");
  }
}

void take_files(const proto::RestoreRequest& request) {
  const auto files = migration::check_files(request.files());
  if (!files) return;
  static int runs = 0;
  const std::string path =
      "/dev/shm/gcr-fuzz-restore-" + std::to_string(::getpid()) + "-" + std::to_string(++runs);
  const auto directory = images::ScratchDirectory::create(path);
  require(bool(directory), "a directory");
  const auto store = images::ImageStore::create(directory->path(), 1, kMiB);
  require(bool(store), "a store");
  if ((*store)->complete(*files)) {
    for (const auto& file : *files) {
      require(std::filesystem::is_regular_file(directory->path() / file.name), "files have names");
    }
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory->path())) {
    const bool is_link = entry.is_symlink() && entry.path().filename() == "parent";
    require(is_link || entry.symlink_status().type() == std::filesystem::file_type::regular ||
                entry.symlink_status().type() == std::filesystem::file_type::directory,
            "files, directories, and links to parents");
  }
}

void take(Input input) {
  std::vector<gpu::LocalAllocation> local;
  for (auto count = input.number<std::uint8_t>() % 8; count > 0; --count) {
    const std::uint64_t chunks = input.number<std::uint8_t>() + 1U;
    local.push_back({.local_id = local.size(), .size_bytes = chunks * kChunkBytes});
  }
  gpu::Job there;
  (void)there.follow(std::vector<gpu::Listed>{{gpu::kRoot, std::move(local)}});
  proto::RestoreRequest request;
  if (!parse(input.rest(), request)) return;
  take_digests(request, there);
  take_files(request);
}

void add_file(proto::RestoreRequest& request, const std::string& name, std::uint32_t id,
              std::uint64_t size_bytes) {
  proto::ImageFile& file = *request.add_files();
  file.set_name(name);
  file.set_id(id);
  file.set_size_bytes(size_bytes);
  file.set_digest(images::ImageDigest{}.to_bytes());  // only zeros
}

void add_digests(proto::RestoreRequest& request, std::uint64_t id, std::size_t bytes) {
  request.add_digests()->set_buffer_id(id);
  request.mutable_digests()->rbegin()->set_digests(std::string(bytes, 'd'));
}

std::string script(const proto::RestoreRequest& request) {
  return Script().number<std::uint8_t>(2).number<std::uint8_t>(0).number<std::uint8_t>(1).text(
      request.SerializeAsString());
}

}  // namespace

std::vector<std::string> seeds() {
  proto::RestoreRequest good;
  add_digests(good, 1, 16);
  add_digests(good, 2, 32);
  add_file(good, "core-1.img", 0, 100);
  add_file(good, "pages-1.img", 1, 4096);
  add_file(good, "pages-2.img", 2, 4096);
  proto::RestoreRequest bad = good;
  add_digests(bad, 2, 31);
  add_file(bad, "../core-1.img", 3, std::uint64_t{1} << 44);
  proto::RestoreRequest twice = good;
  add_file(twice, "core-1.img", 2, 1);
  return {script(good), script(bad), script(twice)};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
