// Journals with arbitrary bytes in the file. Most inputs get valid checksums, because no fuzzer
// finds those by itself.
#include <google/protobuf/stubs/logging.h>
#include <zlib.h>

#include <algorithm>

#include "migrate-agent/commit/journal/format.h"
#include "migrate-agent/commit/journal/text.h"
#include "tests/fuzz/input.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::journal;

enum Mode : std::uint8_t { kRaw = 0, kPadded = 1, kSealed = 2 };

using File = std::vector<std::byte>;

void append(File& file, const Slot& slot) { file.insert(file.end(), slot.begin(), slot.end()); }

/// A record's slot as format.h has it, around any body, with a valid checksum.
Sealed sealed(std::span<const std::byte> body, Checksum previous) {
  constexpr std::size_t kBodyAt = 8;
  Sealed sealed;
  sealed.slot.front() = std::byte{'R'};
  sealed.slot.back() = std::byte{'\n'};
  body = body.first(std::min(body.size(), kSlotBytes - kBodyAt - 1));
  std::copy(body.begin(), body.end(), sealed.slot.begin() + kBodyAt);
  const auto put = [&](std::size_t at, std::uint32_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) sealed.slot[at + i] = std::byte(value >> (8 * i) & 0xff);
  };
  put(2, static_cast<std::uint32_t>(body.size()), 2);
  put(4, previous, 4);
  sealed.checksum = static_cast<Checksum>(
      crc32_z(0, reinterpret_cast<const Bytef*>(sealed.slot.data()), sealed.slot.size()));
  put(4, sealed.checksum, 4);
  return sealed;
}

File file_of(Input& input) {
  const auto mode = static_cast<Mode>(input.number<std::uint8_t>() % 3);
  File file;
  if (mode == kRaw) {
    const auto rest = input.rest();
    return {rest.begin(), rest.end()};
  }
  Sealed last = header();
  append(file, last.slot);
  if (mode == kPadded) {
    const auto rest = input.rest();
    file.insert(file.end(), rest.begin(), rest.end());
  }
  while (mode == kSealed && !input.empty() && file.size() < kFileBytes) {
    last = sealed(input.bytes(input.number<std::uint16_t>()), last.checksum);
    append(file, last.slot);
  }
  file.resize(std::max(file.size(), kFileBytes));
  return file;
}

void take(Input input) {
  static auto* const quiet = google::protobuf::SetLogHandler(nullptr);
  (void)quiet;
  const File file = file_of(input);
  const Contents contents = parse(file);
  require(contents.records.size() < kSlots, "no more records than slots");
  if (contents.damage) require(contents.damage->code() == Code::kDataLoss, "damage is data loss");
  if (!contents.damage && !contents.records.empty()) {
    require(contents.records.front().has_began(), "Began is first");
    require(contents.records.front().began().migration_id().size() == 16, "an id");
  }
  for (Record record : contents.records) {
    require(bool(make_fit(record, 64)), "any record can be made fit");
    require(bool(seal(record, 0)), "and written again");
  }
}

std::string body(const Record& record) {
  const std::string bytes = record.SerializeAsString();
  return Script().number(static_cast<std::uint16_t>(bytes.size())).text(bytes);
}

}  // namespace

std::vector<std::string> seeds() {
  Record began;
  began.mutable_began()->set_migration_id("0123456789abcdef");
  began.mutable_began()->set_role(Began::SOURCE);
  began.mutable_began()->set_peer("host:7411");
  began.mutable_began()->set_command("train \xc3\xa4");
  Record finished;
  finished.mutable_finished()->set_text("the process runs");
  Record aborted;
  aborted.mutable_aborted()->set_message("the source gave it up");
  Script damaged;
  damaged.number(kPadded).bytes(seal(began, header().checksum)->slot).number<std::uint32_t>('R');
  return {Script().number(kRaw).bytes(header().slot), damaged,
          Script().number(kSealed).text(body(began)).text(body(finished)),
          Script().number(kSealed).text(body(began)).text(body(aborted)).text(body(began))};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
