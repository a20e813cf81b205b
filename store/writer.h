// Writes a checkpoint into a directory.
//
// Contents are deduplicated by name: a content that an earlier valid checkpoint of the directory
// has, or this one already, is not written again. Other contents go to packs, round-robin over as
// many as the amount of data justifies. seal() finishes the packs and writes the manifest under a
// name that no reader uses; publish() gives it its final name, which makes the checkpoint exist.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/codec.h"
#include "store/manifest.h"
#include "store/pack.h"
#include "store/survey.h"

namespace gcr::store {

/// A Writer's number of a content.
using ContentRef = std::uint32_t;

/// A checkpoint that is being written. Thread-safe except for create(), seal() and publish(). All
/// calls block. Without a successful publish(), the destructor leaves the files; discard() removes
/// them.
class Writer {
 public:
  struct Options {
    Uuid checkpoint{};
    std::string name{};          ///< must satisfy is_name()
    Codec codec = Codec::kNone;  ///< used if it makes a content smaller
    unsigned packs = 4;  ///< the most packs that are written concurrently; fewer for little data
    control::TlsFiles tls{};  ///< signs the manifest and verifies earlier ones
    SignerRule rule{};        ///< accepted signers of earlier manifests
  };

  /// Locks the directory while the object lives, and removes leftovers of dead writers, but no
  /// sealed checkpoint. kRefused if another process writes, or a checkpoint of that name exists.
  /// Uses the keys of the newest valid checkpoint, so that names and digests can be compared with
  /// it; else random keys.
  static Result<std::unique_ptr<Writer>> create(Directory directory, Options options);

  const Directory& directory() const { return directory_; }
  const Key& digest_key() const { return digest_key_; }
  const Options& options() const { return options_; }

  /// Adds a use of a content of 1 byte to 2 MiB, and stores it unless it exists: a valid published
  /// checkpoint needs it and a pack lists it, or this writer wrote it. After an error nothing of it
  /// is left.
  Result<ContentRef> add(std::span<const std::byte> bytes);

  /// Adds a use of a chunk of an earlier checkpoint, by its digest under digest_key(); nullopt if
  /// there is none.
  std::optional<ContentRef> find_chunk(std::span<const std::byte, 16> digest,
                                       std::uint32_t raw_bytes);

  /// Removes one use; after the last one, the content's place in a pack may be reused.
  void drop(ContentRef content);

  /// Makes all contents durable and writes the manifest under a name that no reader uses. Fills the
  /// manifest's contents, format, name, id, keys, agent and `new_bytes`, and converts its
  /// references from ContentRefs to indexes of its contents. No content may be added afterwards. A
  /// content that is used but not referred to stays in its pack.
  Status seal(proto::Manifest manifest);

  /// Makes the sealed checkpoint exist.
  Status publish();

  std::uint64_t new_bytes() const { return new_bytes_; }        ///< written; compressed size
  std::uint64_t shared_bytes() const { return shared_bytes_; }  ///< not written; uncompressed size

  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

 private:
  struct Content;

  Writer(Directory directory, Options options);

  Status load_earlier_checkpoints();
  Status begin_packs();
  void reuse(const std::vector<proto::Manifest>& earlier, const Packs& packs);
  void reuse_chunks(const proto::Manifest& earlier);
  std::optional<ContentRef> reuse_content(std::unique_lock<std::mutex>& lock,
                                          const ContentName& name, std::uint32_t raw_bytes,
                                          Status& failure);
  PackWriter& next_pack();
  ContentRef number_for(const Content& content);
  void forget(ContentRef content);
  Result<ContentRef> finish_write(ContentRef content, const Result<Location>& written);
  Result<Location> write(PackWriter& pack, const ContentName& name,
                         std::span<const std::byte> bytes) const;
  Status finish_packs();
  Status translate(proto::Manifest& manifest) const;

  Directory directory_;
  const Options options_;
  UniqueFd lock_;
  Key content_key_{};
  Key digest_key_{};
  /// Lengths of contents of earlier checkpoints that packs list.
  std::unordered_map<ContentName, std::uint32_t, HashName> existing_;
  /// Chunks of earlier checkpoints by digest.
  std::map<std::array<std::byte, kDigestBytes>, ContentName> chunks_;
  std::vector<std::unique_ptr<PackWriter>> packs_;
  std::atomic<unsigned> next_pack_ = 0;
  std::atomic<std::uint64_t> new_bytes_ = 0;
  std::atomic<std::uint64_t> shared_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable written_;
  std::vector<Content> contents_;  ///< by ContentRef
  std::vector<ContentRef> unused_;
  std::unordered_map<ContentName, ContentRef, HashName> by_name_;
};

/// Publishes a sealed checkpoint whose writer could not. kNotFound: it was never sealed, or was
/// discarded; kRefused if another checkpoint has the name. Idempotent: succeeds if it exists
/// already.
Status publish(const Directory& directory, const Uuid& checkpoint, const std::string& name);

/// Removes everything that a writer has left, which will never publish. Does not touch a published
/// checkpoint of that id.
Status discard(const Directory& directory, const Uuid& checkpoint, const std::string& name);

}  // namespace gcr::store
