#include "store/codec.h"

#include <fmt/format.h>
#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

namespace gcr::store {
namespace {

/// Level 1: on links on which zstd is faster than lz4, higher levels cost more time than they save.
constexpr int kZstdLevel = 1;
/// Number of blocks on which each codec is tried.
constexpr unsigned kTrials = 4;
constexpr std::array kTried = {Codec::kLz4, Codec::kZstd};

const char* chars(std::span<const std::byte> bytes) {
  return reinterpret_cast<const char*>(bytes.data());
}
char* chars(std::span<std::byte> bytes) { return reinterpret_cast<char*>(bytes.data()); }

/// The codec of all blocks; none if the blocks decide.
std::optional<Codec> fixed_codec(Compression requested, double link_bytes_per_s) {
  switch (requested) {
    case Compression::kNone:
      return Codec::kNone;
    case Compression::kLz4:
      return Codec::kLz4;
    case Compression::kZstd:
      return Codec::kZstd;
    case Compression::kAuto:
      break;
  }
  return link_bytes_per_s > 0 ? std::nullopt : std::optional(Codec::kNone);
}

}  // namespace

std::string_view to_string(Codec codec) {
  switch (codec) {
    case Codec::kNone:
      return "none";
    case Codec::kLz4:
      return "lz4";
    case Codec::kZstd:
      return "zstd";
    case Codec::kInvalid:
      break;
  }
  return "invalid";
}

std::size_t compress(Codec codec, std::span<const std::byte> raw, std::span<std::byte> out) {
  const std::size_t limit = raw.empty() ? 0 : std::min(out.size(), raw.size() - 1);
  if (codec == Codec::kLz4) {
    return static_cast<std::size_t>(
        std::max(0, LZ4_compress_default(chars(raw), chars(out), static_cast<int>(raw.size()),
                                         static_cast<int>(limit))));
  }
  // Kept per thread: creating a context takes longer than compressing a block.
  thread_local const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                                  &ZSTD_freeCCtx);
  const std::size_t size =
      ZSTD_compressCCtx(context.get(), out.data(), limit, raw.data(), raw.size(), kZstdLevel);
  return ZSTD_isError(size) != 0 ? 0 : size;
}

Status decompress(Codec codec, std::span<const std::byte> stored, std::span<std::byte> raw) {
  bool whole = false;
  if (codec == Codec::kLz4) {
    const int got = LZ4_decompress_safe(chars(stored), chars(raw), static_cast<int>(stored.size()),
                                        static_cast<int>(raw.size()));
    whole = got >= 0 && static_cast<std::size_t>(got) == raw.size();
  } else {
    thread_local const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(
        ZSTD_createDCtx(), &ZSTD_freeDCtx);
    const std::size_t got =
        ZSTD_decompressDCtx(context.get(), raw.data(), raw.size(), stored.data(), stored.size());
    whole = ZSTD_isError(got) == 0 && got == raw.size();
  }
  if (whole) return {};
  return Error(Code::kDataLoss,
               fmt::format("{} bytes of {} do not decompress to the {} bytes of their block",
                           stored.size(), to_string(codec), raw.size()));
}

CodecChooser::CodecChooser(Compression requested, double link_bytes_per_s, unsigned threads)
    : fixed_(fixed_codec(requested, link_bytes_per_s)),
      link_bytes_per_s_(link_bytes_per_s),
      threads_(std::max(1U, threads)) {}

Codec CodecChooser::next() {
  if (fixed_) return *fixed_;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < kTried.size(); ++i) {
    if (observed_[i].asked < kTrials) {
      ++observed_[i].asked;
      return kTried[i];
    }
  }
  return best();
}

void CodecChooser::observe(Codec codec, std::size_t raw_bytes, std::size_t stored_bytes,
                           double seconds) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < kTried.size(); ++i) {
    if (kTried[i] != codec) continue;
    observed_[i].raw_bytes += raw_bytes;
    observed_[i].stored_bytes += stored_bytes;
    observed_[i].seconds += seconds;
  }
}

Codec CodecChooser::chosen() const {
  if (fixed_) return *fixed_;
  const std::lock_guard lock(mutex_);
  return best();
}

Codec CodecChooser::best() const {
  Codec best = Codec::kNone;
  double least = 1 / link_bytes_per_s_;  // seconds per byte
  for (std::size_t i = 0; i < kTried.size(); ++i) {
    const Observed& seen = observed_[i];
    if (seen.raw_bytes == 0) continue;
    const auto raw = static_cast<double>(seen.raw_bytes);
    const double on_link = static_cast<double>(seen.stored_bytes) / raw / link_bytes_per_s_;
    const double cost = std::max(on_link, seen.seconds / raw / threads_);
    if (cost >= least) continue;
    least = cost;
    best = kTried[i];
  }
  return best;
}

}  // namespace gcr::store
