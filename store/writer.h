// A checkpoint that is being written into a directory. What earlier checkpoints there have, or this
// one already, is not written again.
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

/// A content of a Writer, in its own numbers.
using ContentRef = std::uint32_t;

/// Thread-safe but for create(), seal() and publish(). Everything blocks. Unless publish() has
/// succeeded, the destructor leaves the files for discard().
class Writer {
 public:
  struct Options {
    Uuid checkpoint{};
    std::string name{};          ///< is_name()
    Codec codec = Codec::kNone;  ///< where it makes a content smaller
    unsigned packs = 4;  ///< most files that are written side by side, for little there are fewer
    control::TlsFiles tls{};  ///< to sign with, and to believe earlier manifests
    SignerRule rule{};        ///< whose earlier manifests are believed
  };

  /// Takes the directory's lock, until this object goes; removes what writers that died have left,
  /// but not a sealed checkpoint. kRefused if another writes, or a checkpoint of that name exists.
  /// Keys are those of the newest checkpoint there that can be believed, so that contents and
  /// digests can be compared with it; else random ones.
  static Result<std::unique_ptr<Writer>> create(Directory directory, Options options);

  const Directory& directory() const { return directory_; }
  const Key& digest_key() const { return digest_key_; }
  const Options& options() const { return options_; }

  /// Stores a content of 1 byte to 2 MiB, unless it is there already: one more use of it. A content
  /// counts as there if a published checkpoint that can be believed needs it and a pack claims to
  /// have it, or if this writer wrote it. After an error nothing of it is left.
  Result<ContentRef> add(std::span<const std::byte> bytes);

  /// One more use of a chunk that an earlier checkpoint has, by its digest under digest_key().
  std::optional<ContentRef> find_chunk(std::span<const std::byte, 16> digest,
                                       std::uint32_t raw_bytes);

  /// One use less; without any left, its place in a pack may be used again.
  void drop(ContentRef content);

  /// Makes all durable, and the manifest under a name that nobody reads. Fills the manifest's
  /// contents, format, name, id, keys, agent and `new_bytes`; its references are ContentRefs, which
  /// become places among the contents. Nothing is added afterwards. A content that is used and not
  /// referred to is kept in its pack.
  Status seal(proto::Manifest manifest);

  /// After seal(): the checkpoint exists.
  Status publish();

  std::uint64_t new_bytes() const { return new_bytes_; }        ///< written, as stored
  std::uint64_t shared_bytes() const { return shared_bytes_; }  ///< not written, uncompressed

  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

 private:
  struct Content;
  struct Past;

  Writer(Directory directory, Options options);

  Status learn();
  Status begin_packs();
  void reuse(const std::vector<Past>& pasts, const Packs& packs);
  std::optional<ContentRef> use_known(std::unique_lock<std::mutex>& lock, const ContentName& name,
                                      std::uint32_t raw_bytes, Status& failure);
  PackWriter& next_pack();
  ContentRef number_for(const Content& content);
  void forget(ContentRef content);
  Result<ContentRef> end_of_write(ContentRef content, const Result<Location>& written);
  Result<Location> write(PackWriter& pack, const ContentName& name,
                         std::span<const std::byte> bytes) const;
  Status finish_packs();
  Status translate(proto::Manifest& manifest) const;

  Directory directory_;
  const Options options_;
  UniqueFd lock_;
  Key content_key_{};
  Key digest_key_{};
  /// Contents of earlier checkpoints that packs have, with their lengths.
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

/// Makes a sealed checkpoint exist that its writer could not publish any more. kNotFound: it was
/// never sealed, or was discarded; kRefused if another checkpoint has the name. Idempotent: success
/// if it exists.
Status publish(const Directory& directory, const Uuid& checkpoint, const std::string& name);

/// Removes all that a writer has left which will never publish. Leaves a published checkpoint of
/// that id alone.
Status discard(const Directory& directory, const Uuid& checkpoint, const std::string& name);

}  // namespace gcr::store
