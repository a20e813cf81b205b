#include "store/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/base/log.h"
#include "src/base/random.h"
#include "src/base/side_by_side.h"

namespace gcr::store {
namespace {

constexpr std::uint64_t kPackShareBytes = 64 * kMiB;

std::string text_of(const Key& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

Error no_content(ContentRef content) {
  return Error(Code::kInternal, fmt::format("the writer has no content {}", content));
}

}  // namespace

struct Writer::Content {
  enum class State { kWriting, kReady, kFailed };

  ContentName name{};
  std::uint32_t raw_bytes = 0;
  std::uint32_t stored_bytes = 0;
  std::uint32_t uses = 0;
  PackWriter* pack = nullptr;  ///< null: in a pack of an earlier checkpoint
  State state = State::kReady;
};

Writer::Writer(Directory directory, Options options)
    : directory_(std::move(directory)), options_(std::move(options)) {}

Writer::~Writer() = default;

Result<std::unique_ptr<Writer>> Writer::create(Directory directory, Options options) {
  if (!is_name(options.name)) {
    return Error(
        Code::kInvalidArgument,
        "a checkpoint's name has 1 to 128 of A-Z a-z 0-9 . _ - and does not begin with a dot");
  }
  std::unique_ptr<Writer> writer(new Writer(std::move(directory), std::move(options)));
  const std::string name = writer->options_.name;
  GCR_ASSIGN(writer->lock_, writer->directory_.lock());
  GCR_ASSIGN(const bool is_taken, writer->directory_.exists(file_of(name)));
  if (is_taken) {
    return Error(Code::kRefused, fmt::format("{} has a checkpoint {} already: choose another name",
                                             writer->directory_.path().native(), name));
  }
  GCR_TRY(writer->directory_.make_packs());
  GCR_TRY(writer->load_earlier_checkpoints());
  const Status begun = writer->begin_packs();
  if (begun) return writer;
  (void)discard(writer->directory_, writer->options_.checkpoint, name);
  return begun.error();
}

/// Reads the earlier checkpoints: removes leftovers, chooses keys, and finds reusable contents.
Status Writer::load_earlier_checkpoints() {
  std::vector<proto::Manifest> earlier;
  Needs needs;
  GCR_TRY(visit_manifests(directory_, options_.tls, [&](Found found) {
    needs.add(found);
    if (!found.manifest || !found.is_published) return;
    const Status accepted = options_.rule ? options_.rule(found.manifest->agent()) : Status{};
    if (!accepted) {
      spdlog::warn("not reusing contents of {}: {}", found.file_name, accepted.error().message());
      return;
    }
    found.manifest->clear_images();
    found.manifest->clear_memories();
    earlier.push_back(*found.manifest);  // the copy has no memory of the cleared fields
  }));
  if (needs.problem()) {
    spdlog::warn("not removing leftovers of earlier writers: {}", needs.problem()->message());
  } else {
    GCR_TRY(remove_unneeded(directory_, needs, false));
  }
  const auto newest = std::ranges::max_element(earlier, is_older);
  if (newest == earlier.end()) {
    content_key_ = random_bytes<sizeof(Key)>();
    digest_key_ = random_bytes<sizeof(Key)>();
    return {};
  }
  content_key_ = key_of(newest->content_key());
  digest_key_ = key_of(newest->digest_key());
  GCR_ASSIGN(const auto packs, Packs::open(directory_));
  reuse(earlier, *packs);
  return {};
}

void Writer::reuse(const std::vector<proto::Manifest>& earlier, const Packs& packs) {
  std::unordered_map<ContentName, std::uint32_t, HashName> in_packs;
  for (const Packs::Pack& pack : packs.packs()) {
    for (const IndexEntry& entry : pack.index)
      in_packs.emplace(entry.name, entry.location.raw_bytes);
  }
  for (const proto::Manifest& one : earlier) {
    if (key_of(one.content_key()) != content_key_) continue;
    for (int i = 0; i < one.content_bytes_size(); ++i) {
      const auto found = in_packs.find(content_name(one, static_cast<std::size_t>(i)));
      if (found != in_packs.end() && found->second == one.content_bytes(i)) {
        existing_.insert(*found);
      }
    }
    if (key_of(one.digest_key()) == digest_key_) reuse_chunks(one);
  }
}

void Writer::reuse_chunks(const proto::Manifest& earlier) {
  for (const proto::StoredBuffer& buffer : earlier.vram()) {
    for (int chunk = 0; chunk < buffer.contents_size(); ++chunk) {
      if (buffer.contents(chunk) == 0) continue;  // zeros
      const ContentName name = content_name(earlier, buffer.contents(chunk) - 1);
      if (!existing_.contains(name)) continue;
      std::array<std::byte, kDigestBytes> digest;
      std::memcpy(digest.data(),
                  buffer.digests().data() + static_cast<std::size_t>(chunk) * digest.size(),
                  digest.size());
      chunks_.emplace(digest, name);
    }
  }
}

Status Writer::begin_packs() {
  for (unsigned i = 0; i < std::max(1u, options_.packs); ++i) {
    GCR_ASSIGN(auto pack, PackWriter::create(directory_, pack_file_of(options_.checkpoint, i)));
    packs_.push_back(std::move(pack));
  }
  return {};
}

/// Assigns a number to a new content. The caller holds mutex_, as for the next two.
ContentRef Writer::number_for(const Content& content) {
  ContentRef number = static_cast<ContentRef>(contents_.size());
  if (unused_.empty()) {
    contents_.push_back(content);
  } else {
    number = unused_.back();
    unused_.pop_back();
    contents_[number] = content;
  }
  by_name_[content.name] = number;
  return number;
}

void Writer::forget(ContentRef content) {
  const auto found = by_name_.find(contents_[content].name);
  if (found != by_name_.end() && found->second == content) by_name_.erase(found);
  unused_.push_back(content);
}

/// Adds a use of an existing content; waits if another thread is writing it. Nullopt if there is
/// none; sets `failure` if that thread could not write it.
std::optional<ContentRef> Writer::reuse_content(std::unique_lock<std::mutex>& lock,
                                                const ContentName& name, std::uint32_t raw_bytes,
                                                Status& failure) {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) {
    const ContentRef number = found->second;
    ++contents_[number].uses;
    written_.wait(lock, [&] { return contents_[number].state != Content::State::kWriting; });
    if (contents_[number].state == Content::State::kReady) {
      shared_bytes_ += raw_bytes;
      return number;
    }
    if (--contents_[number].uses == 0) unused_.push_back(number);
    failure = Error(Code::kIo, "another thread could not write the same content");
    return std::nullopt;
  }
  const auto existing = existing_.find(name);
  if (existing == existing_.end() || existing->second != raw_bytes) return std::nullopt;
  shared_bytes_ += raw_bytes;
  return number_for({.name = name, .raw_bytes = raw_bytes, .uses = 1});
}

Result<Location> Writer::write(PackWriter& pack, const ContentName& name,
                               std::span<const std::byte> bytes) const {
  const auto raw_bytes = static_cast<std::uint32_t>(bytes.size());
  if (options_.codec == Codec::kLz4 || options_.codec == Codec::kZstd) {
    thread_local std::vector<std::byte> smaller;
    smaller.resize(bytes.size());
    const std::size_t length = compress(options_.codec, bytes, smaller);
    if (length != 0) {
      return pack.add(name, std::span(smaller).first(length), raw_bytes, options_.codec);
    }
  }
  return pack.add(name, bytes, raw_bytes, Codec::kNone);
}

/// The next pack, round-robin. The number of packs in use grows by one per kPackShareBytes written.
PackWriter& Writer::next_pack() {
  const std::size_t in_use = std::min(packs_.size(), 1 + new_bytes_ / kPackShareBytes);
  return *packs_[next_pack_++ % in_use];
}

Result<ContentRef> Writer::add(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() > kMaxContentBytes) {
    return Error(Code::kInvalidArgument, fmt::format("a content has 1 to {} bytes, not {}",
                                                     kMaxContentBytes, bytes.size()));
  }
  const ContentName name = name_of(content_key_, bytes);
  const auto raw_bytes = static_cast<std::uint32_t>(bytes.size());
  std::unique_lock lock(mutex_);
  Status failure;
  if (const auto known = reuse_content(lock, name, raw_bytes, failure)) return *known;
  GCR_TRY(failure);
  PackWriter& pack = next_pack();
  const ContentRef number = number_for({.name = name,
                                        .raw_bytes = raw_bytes,
                                        .uses = 1,
                                        .pack = &pack,
                                        .state = Content::State::kWriting});
  lock.unlock();
  const auto written = write(pack, name, bytes);
  lock.lock();
  return finish_write(number, written);
}

Result<ContentRef> Writer::finish_write(ContentRef number, const Result<Location>& written) {
  Content& content = contents_[number];
  written_.notify_all();
  if (written) {
    content.state = Content::State::kReady;
    content.stored_bytes = written->stored_bytes;
    new_bytes_ += written->stored_bytes;
    return number;
  }
  content.state = Content::State::kFailed;
  by_name_.erase(content.name);
  if (--content.uses == 0) unused_.push_back(number);
  return written.error();
}

std::optional<ContentRef> Writer::find_chunk(std::span<const std::byte, 16> digest,
                                             std::uint32_t raw_bytes) {
  std::array<std::byte, kDigestBytes> key;
  std::ranges::copy(digest, key.begin());
  const auto found = chunks_.find(key);
  if (found == chunks_.end()) return std::nullopt;
  const auto existing = existing_.find(found->second);
  if (existing == existing_.end() || existing->second != raw_bytes) return std::nullopt;
  std::unique_lock lock(mutex_);
  Status failure;
  return reuse_content(lock, found->second, raw_bytes, failure);
}

void Writer::drop(ContentRef number) {
  const std::lock_guard lock(mutex_);
  if (number >= contents_.size() || contents_[number].uses == 0) {
    spdlog::error("internal error: {}", no_content(number).message());
    return;
  }
  Content& content = contents_[number];
  --content.uses;
  if (content.uses != 0 || content.pack == nullptr) shared_bytes_ -= content.raw_bytes;
  if (content.uses != 0) return;
  if (content.pack != nullptr) {
    content.pack->remove(content.name);
    new_bytes_ -= content.stored_bytes;
  }
  forget(number);
}

/// Finishes all packs; removes those without contents.
Status Writer::finish_packs() {
  return side_by_side(packs_, [this](const std::unique_ptr<PackWriter>& pack) {
    return pack->live_bytes() == 0 ? directory_.remove(pack->file_name()) : pack->finish();
  });
}

/// Converts the manifest's references from this writer's numbers to indexes of the manifest's
/// contents, and lists those contents.
Status Writer::translate(proto::Manifest& manifest) const {
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::vector<std::uint32_t> places(contents_.size(), kNone);
  const auto place_of = [&](ContentRef number) -> Result<std::uint32_t> {
    if (number >= contents_.size() || contents_[number].uses == 0) return no_content(number);
    const Content& content = contents_[number];
    if (places[number] == kNone) {
      places[number] = static_cast<std::uint32_t>(manifest.content_bytes_size());
      manifest.add_content_bytes(content.raw_bytes);
      manifest.mutable_content_names()->append(text_of(content.name));
    }
    return places[number];
  };
  manifest.clear_content_names();
  manifest.clear_content_bytes();
  for (proto::StoredBuffer& buffer : *manifest.mutable_vram()) {
    for (std::uint32_t& content : *buffer.mutable_contents()) {
      if (content == 0) continue;  // zeros
      GCR_ASSIGN(const std::uint32_t place, place_of(content - 1));
      content = place + 1;
    }
  }
  for (auto* images : {manifest.mutable_images(), manifest.mutable_memories()}) {
    for (proto::StoredImage& image : *images) {
      for (proto::Extent& extent : *image.mutable_extents()) {
        GCR_ASSIGN(const std::uint32_t place, place_of(extent.content()));
        extent.set_content(place);
      }
    }
  }
  return {};
}

Status Writer::seal(proto::Manifest manifest) {
  GCR_TRY(translate(manifest));
  manifest.set_format(kFormat);
  manifest.set_checkpoint_id(to_bytes(options_.checkpoint));
  manifest.set_name(options_.name);
  manifest.set_content_key(text_of(content_key_));
  manifest.set_digest_key(text_of(digest_key_));
  manifest.set_new_bytes(new_bytes_);
  GCR_TRY(finish_packs());
  // The packs' names must be durable before a manifest refers to them.
  GCR_TRY(directory_.sync());
  return write_manifest(directory_, voted_file_of(options_.checkpoint), std::move(manifest),
                        options_.tls);
}

Status Writer::publish() { return store::publish(directory_, options_.checkpoint, options_.name); }

Status publish(const Directory& directory, const Uuid& checkpoint, const std::string& name) {
  const std::string sealed = voted_file_of(checkpoint);
  if (!is_name(name))
    return Error(Code::kInvalidArgument, "the name of the checkpoint is not valid");
  GCR_ASSIGN(const bool is_sealed, directory.exists(sealed));
  GCR_ASSIGN(const auto named, claimed_id(directory, file_of(name)));
  const bool is_published = named == checkpoint;
  if (!is_sealed && !is_published) {
    return Error(Code::kNotFound, fmt::format("{} has no sealed checkpoint {}: it was never "
                                              "complete, or was discarded",
                                              directory.path().native(), checkpoint.to_string()));
  }
  if (is_sealed && is_published) {  // a rename by link(2) was interrupted
    GCR_TRY(directory.remove(sealed));
  } else if (is_sealed) {
    GCR_TRY(directory.rename(sealed, file_of(name)));
  }
  return directory.sync();
}

Status discard(const Directory& directory, const Uuid& checkpoint, const std::string& name) {
  const std::string sealed = voted_file_of(checkpoint);
  std::optional<Uuid> named;
  if (is_name(name)) {
    GCR_ASSIGN(named, claimed_id(directory, file_of(name)));
  }
  GCR_TRY(directory.remove(sealed));
  GCR_TRY(directory.remove(sealed + ".new"));
  // Before its packs are removed, so that a power failure cannot restore the manifest without them.
  GCR_TRY(directory.sync());
  if (named == checkpoint) return {};
  GCR_ASSIGN(const auto packs, directory.list("packs"));
  for (const std::string& pack : packs) {
    const std::string file_name = "packs/" + pack;
    if (writer_of_pack(file_name) == checkpoint) GCR_TRY(directory.remove(file_name));
  }
  return directory.sync();
}

}  // namespace gcr::store
