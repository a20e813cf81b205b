// Stores images and memory in a checkpoint.
#pragma once

#include <asio/thread_pool.hpp>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "migrate-agent/migration/target/store/extents.h"
#include "migrate-agent/transfer/images/sink.h"
#include "src/base/raw_bytes.h"
#include "store/writer.h"
#include "transport/transfer.h"

namespace gcr::migration {

class CheckpointSink : public images::Sink {
 public:
  /// `writer` outlives this object.
  explicit CheckpointSink(store::Writer& writer);
  ~CheckpointSink() override;

  Status take(const std::string& name, UniqueFd content) override;
  Status take_memory(const std::string& name, std::span<const AddressRange> ranges,
                     const ReadMemory& read, bool last) override;
  /// Flushes. The result names no files: the manifest has their contents.
  Result<images::SentImages> finish() override;

  /// Makes every later call fail with `why`. Any thread; never blocks.
  void cancel(const Error& why) { (void)broken_.set(why); }

  /// Adds all images and memories to `manifest`. Call it after the last take.
  void describe(proto::Manifest& manifest);

 private:
  struct Image {
    explicit Image(store::Writer& writer) : extents(writer) {}
    std::mutex mutex;
    Extents extents;
    std::uint64_t size_bytes = 0;
  };
  using Images = std::map<std::string, std::unique_ptr<Image>>;

  Image& image(Images& images, const std::string& name);
  void store_later(Image& file, std::uint64_t offset, RawBytes window, std::size_t length);
  Status store(Image& image, std::uint64_t offset, std::span<const std::byte> bytes);
  Status store_part(Image& image, std::uint64_t part, std::span<const AddressRange> ranges,
                    const ReadMemory& read, bool last);

  store::Writer& writer_;
  transport::FirstError broken_;
  std::mutex mutex_;  ///< protects the maps and under_way_
  Images files_;
  Images memories_;
  std::atomic<std::uint64_t> raw_bytes_ = 0;
  std::atomic<std::uint64_t> memory_bytes_ = 0;
  std::atomic<std::uint64_t> stored_bytes_ = 0;
  std::condition_variable stored_;  ///< notified, with mutex_, when under_way_ decreases
  unsigned under_way_ = 0;          ///< windows that were read and are not stored yet
  asio::thread_pool workers_;
};

}  // namespace gcr::migration
