// BuffersRequests, one after the other, as the destination handles them.
#include "migrate-agent/migration/destination/request_checks.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/requests.h"

namespace gcr::fuzz {
namespace {

void take(Input input) {
  gpu::Job there(2);
  while (!input.empty()) {
    proto::BuffersRequest request;
    if (!parse(input.bytes(input.number<std::uint16_t>()), request)) return;
    if (!migration::remove_buffers(request.removed_ids(), there)) return;
    if (!migration::remap_buffers(request.remapped(), there)) return;
    const auto wanted = migration::add_buffers(request.added(), kGpuMap, there, kRoomBytes);
    if (!wanted) return;
    check_added(*wanted, there);
  }
}

std::string request(const std::vector<proto::Buffer>& added,
                    const std::vector<std::uint64_t>& removed,
                    const std::vector<proto::Buffer>& remapped = {}) {
  proto::BuffersRequest request;
  request.mutable_added()->Assign(added.begin(), added.end());
  request.mutable_removed_ids()->Add(removed.begin(), removed.end());
  request.mutable_remapped()->Assign(remapped.begin(), remapped.end());
  const std::string bytes = request.SerializeAsString();
  return Script().number(static_cast<std::uint16_t>(bytes.size())).text(bytes);
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string first = request({buffer(1, kChunkBytes), buffer(2, 3 * kChunkBytes)}, {});
  proto::Buffer shared = buffer(1, kChunkBytes);
  shared.add_mapped_by()->set_member(1);
  return {
      first + request({buffer(3, kChunkBytes)}, {1}) + request({buffer(1, kChunkBytes)}, {2, 3}),
      first + request({}, {2}, {shared}),
      first + request({}, {1, 1}),
      first + request({buffer(4, kChunkBytes + 1)}, {}),
      request({buffer(1, kChunkBytes), buffer(1, kChunkBytes)}, {}),
      request({buffer(1, ~std::uint64_t{0} / kChunkBytes * kChunkBytes)}, {})};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
