// Ends and indexes of packs, and the contents that they list. The sum of an index is made valid,
// because no fuzzer finds that by itself.
#include <algorithm>

#include "store/pack_format.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/pack_end.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::store;

void check(const std::vector<IndexEntry>& index, const PackEnd& end,
           std::span<const std::byte> stored) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    const Location& at = index[i].location;
    require(i == 0 || index[i - 1].name < index[i].name, "names ascend");
    require(at.offset >= kPackHeaderBytes && at.offset + at.stored_bytes <= end.index_offset,
            "contents lie before the index");
    require(at.raw_bytes >= 1 && at.raw_bytes <= kMaxContentBytes, "contents are within limits");
    std::vector<std::byte> raw(at.raw_bytes);
    const auto bytes = stored.first(std::min<std::size_t>(stored.size(), at.stored_bytes));
    require(!decode(Key{}, index[i].name, at, bytes, raw), "nothing has this name");
  }
}

void take(Input input) {
  const bool is_sealed = input.number<std::uint8_t>() % 4 != 0;
  const auto file_bytes = input.number<std::uint64_t>();
  const auto taken = input.bytes(kPackEndBytes);
  std::vector<std::byte> last(taken.begin(), taken.end());
  const auto index = input.bytes(input.number<std::uint16_t>());
  if (is_sealed && last.size() == kPackEndBytes) seal(last, index);
  const auto end = parse_pack_end(last, file_bytes);
  if (!end) return;
  require(end->entries <= kMaxPackEntries, "entries are within their limit");
  require(end->index_offset + end->index_bytes() + kPackEndBytes == file_bytes, "it all fits");
  if (const auto parsed = parse_index(index, *end)) check(*parsed, *end, input.rest());
}

std::string pack(const std::map<ContentName, Location>& index) {
  const std::uint64_t offset = kPackHeaderBytes + kMaxContentBytes;
  const auto bytes = encode_index(index, offset);
  const auto entries = std::span(bytes).first(index.size() * kIndexEntryBytes);
  return Script()
      .number<std::uint8_t>(1)
      .number<std::uint64_t>(offset + bytes.size())
      .bytes(std::span(bytes).last(kPackEndBytes))
      .number(static_cast<std::uint16_t>(entries.size()))
      .bytes(entries)
      .text("what is stored");
}

}  // namespace

std::vector<std::string> seeds() {
  const Location plain{.offset = kPackHeaderBytes, .stored_bytes = 14, .raw_bytes = 14};
  Location packed = plain;
  packed.raw_bytes = 100;
  packed.codec = store::Codec::kZstd;
  return {pack({}), pack({{ContentName{std::byte{1}}, plain}}),
          pack({{ContentName{std::byte{1}}, plain}, {ContentName{std::byte{2}}, packed}})};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
