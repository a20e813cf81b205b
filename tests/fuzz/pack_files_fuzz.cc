// Directories with untrusted content: files of any name, some of them packs. They are listed,
// opened, read and tidied up; foreign files are left alone, and no content is taken for another.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "src/base/little_endian.h"
#include "store/pack.h"
#include "store/survey.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/pack_end.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::store;
namespace fs = std::filesystem;

constexpr std::size_t kMostFiles = 4;
constexpr std::size_t kMostRead = 16;  ///< contents of one pack: each may have 2 MiB

/// An empty directory of checkpoints, which is removed with its object.
class Fresh {
 public:
  Fresh() {
    std::string path = fs::temp_directory_path() / "gcr-fuzz-XXXXXX";
    require(::mkdtemp(path.data()) != nullptr, "there is a temporary folder");
    path_ = path;
    fs::create_directory(path_ / "packs");
  }
  ~Fresh() { fs::remove_all(path_); }
  Fresh(const Fresh&) = delete;
  Fresh& operator=(const Fresh&) = delete;

  /// Names that no file can have name none.
  void write(const std::string& name, std::span<const std::byte> bytes) const {
    if (name.find('/') != name.npos || name.find('\0') != name.npos) return;
    for (const fs::path& folder : {path_, path_ / "packs"}) {
      std::ofstream file(folder / name, std::ios::binary);
      file.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    }
  }

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// One name, one spelling: any other is not accepted for it.
void check_name(const std::string& name) {
  const std::string file_name = "packs/" + name;
  if (writer_of_pack(file_name)) {
    require(file_name.starts_with(pack_file_of(*writer_of_pack(file_name), 0).substr(0, 43)),
            "a pack has the name of its writer");
  }
  if (restore_of(name)) {
    require(name == restoring_file_of(*restore_of(name)), "a restore has one name");
  }
  if (is_name(name)) {
    require(name.size() <= 128 && name.find('/') == name.npos && name.front() != '.',
            "a checkpoint's name is a file's");
  }
}

/// The part after the contents: the index from `index_offset` on, and an end for it.
std::vector<std::byte> with_end(std::vector<std::byte> pack, std::span<const std::byte> index) {
  auto end = encode_index({}, pack.size());
  store_little_endian(&end[16], std::uint64_t{index.size() / kIndexEntryBytes});
  seal(end, index);
  pack.insert(pack.end(), index.begin(), index.end());
  pack.insert(pack.end(), end.begin(), end.end());
  return pack;
}

std::vector<std::byte> file_of(Input& input) {
  const bool is_pack = input.number<std::uint8_t>() % 8 != 0;
  const auto contents = input.bytes(input.number<std::uint16_t>());
  const auto index = input.bytes(input.number<std::uint8_t>() * kIndexEntryBytes);
  if (!is_pack) return {contents.begin(), contents.end()};
  const auto header = pack_header();
  std::vector<std::byte> pack(header.begin(), header.end());
  pack.insert(pack.end(), contents.begin(), contents.end());
  pack.resize(round_up(pack.size(), kPlaceBytes));
  return with_end(std::move(pack), index);
}

void check_packs(const Packs& packs) {
  const Key key{};
  for (const Packs::Pack& pack : packs.packs()) {
    require(writer_of_pack(pack.file_name).has_value(), "what is open has the name of a pack");
    for (std::size_t i = 0; i < std::min(pack.index.size(), kMostRead); ++i) {
      const IndexEntry& entry = pack.index[i];
      std::vector<std::byte> content(entry.location.raw_bytes);
      const Status read = packs.read(key, entry.name, content);
      require(read || read.error().code() != Code::kNotFound, "what is listed is found");
      if (read) require(name_of(key, content) == entry.name, "a content has its name");
    }
  }
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

void take(Input input) {
  const Fresh fresh;
  for (std::size_t i = input.number<std::uint8_t>() % (kMostFiles + 1); i > 0; --i) {
    const std::string name(input.text(input.number<std::uint8_t>()));
    check_name(name);
    fresh.write(name, file_of(input));
  }
  const auto directory = Directory::open(fresh.path(), {::geteuid(), ::getegid()});
  require(directory.has_value(), "it can be opened");
  require(directory->names().has_value(), "it can be listed");
  const auto packs = Packs::open(*directory);
  require(packs.has_value(), "no pack makes the others useless");
  check_packs(**packs);
  const auto before = names_in(fresh.path());
  const auto packs_before = names_in(fresh.path() / "packs");
  require(remove_unneeded(*directory, Needs(), true).has_value(), "it can be tidied up");
  for (const std::string& name : packs_before) {
    const bool is_pack = writer_of_pack("packs/" + name).has_value();
    require(fs::exists(fresh.path() / "packs" / name) != is_pack, "packs go, and nothing else");
  }
  for (const std::string& name : before) {
    const bool is_unfinished = name.ends_with(".new") && is_entry(name);
    require(fs::exists(fresh.path() / name) != is_unfinished,
            "of the rest what a writer never finished goes");
  }
}

const std::string kPackName = pack_file_of(Uuid{{1, 2, 3}}, 7).substr(6);

/// One file of an input.
std::string file(const std::string& name, const std::string& contents,
                 const std::map<ContentName, Location>& index) {
  const auto bytes = encode_index(index, 0);
  return Script()
      .number(static_cast<std::uint8_t>(name.size()))
      .text(name)
      .number<std::uint8_t>(1)
      .number(static_cast<std::uint16_t>(contents.size()))
      .text(contents)
      .number(static_cast<std::uint8_t>(index.size()))
      .bytes(std::span(bytes).first(index.size() * kIndexEntryBytes));
}

std::string directory_of(const std::vector<std::string>& files) {
  std::string input(1, static_cast<char>(files.size()));
  for (const std::string& one : files) input += one;
  return input;
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string text = "what is stored";
  const ContentName name = name_of(Key{}, std::as_bytes(std::span(text)));
  const Location here{.offset = kPackHeaderBytes,
                      .stored_bytes = static_cast<std::uint32_t>(text.size()),
                      .raw_bytes = static_cast<std::uint32_t>(text.size())};
  const std::string good = file(kPackName, text, {{name, here}});
  return {directory_of({good}),
          directory_of({file(kPackName, "", {}), file("name.checkpoint", text, {})}),
          directory_of({good, file(restoring_file_of(Uuid{{9}}), "", {}),
                        file("name.checkpoint.new", "", {}), file("packs", "", {})})};
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
