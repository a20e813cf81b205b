#include "transport/tcp/frame_log.h"

#include <fmt/format.h>

namespace gcr::transport {
namespace {

// Small writes request a confirmation this often, so that it arrives before the log is full.
constexpr std::size_t kFramesPerAsk = FrameLog::kMaxFrames / 4;
constexpr std::size_t kKeptBytesPerAsk = FrameLog::kMaxKeptBytes / 4;

static_assert(kKeptWriteBytes <= kKeptBytesPerAsk);

}  // namespace

FrameLog::FrameLog() : frames_(kMaxFrames), kept_(kMaxKeptBytes) {}

/// The position at which the next kept bytes begin. They must be contiguous, so they begin at the
/// start of the store if they do not fit before its end.
std::uint64_t FrameLog::place(std::size_t length_bytes) const {
  const std::uint64_t left = kMaxKeptBytes - kept_to_ % kMaxKeptBytes;
  return length_bytes <= left ? kept_to_ : kept_to_ + left;
}

bool FrameLog::has_room(std::size_t kept_bytes) const {
  if (next_ - first_ == kMaxFrames || asks_ >= kMaxAsks) return false;
  return kept_bytes == 0 || place(kept_bytes) + kept_bytes - kept_from_ <= kMaxKeptBytes;
}

FrameLog::Frame& FrameLog::push(RegionId region, std::uint64_t offset) {
  Frame& frame = slot(next_++);
  frame = {.region = region, .offset = offset, .bytes = {}};
  return frame;
}

const FrameLog::Frame& FrameLog::add(RegionId region, std::uint64_t offset,
                                     std::span<const std::byte> bytes, WaitingWriter& writer) {
  Frame& frame = push(region, offset);
  frame.bytes = bytes;
  frame.writer = &writer;
  ++writer.unlanded;
  frame.kept_end = kept_to_;
  ask_newest();
  return frame;
}

const FrameLog::Frame& FrameLog::add_kept(RegionId region, std::uint64_t offset,
                                          std::size_t length_bytes, std::span<std::byte>& copy_to) {
  Frame& frame = push(region, offset);
  const std::uint64_t from = place(length_bytes);
  copy_to = std::span(kept_).subspan(from % kMaxKeptBytes, length_bytes);
  frame.bytes = copy_to;
  frame.kept_end = kept_to_ = from + length_bytes;
  if (next_ - frames_asked_ >= kFramesPerAsk || kept_to_ - kept_asked_ >= kKeptBytesPerAsk) {
    ask_newest();
  }
  return frame;
}

void FrameLog::ask_newest() {
  slot(next_ - 1).asks = true;
  ++asks_;
  frames_asked_ = next_;
  kept_asked_ = kept_to_;
}

Status FrameLog::confirm(std::uint64_t landed) {
  if (landed < first_ || landed > next_) {
    return Error(Code::kProtocol,
                 fmt::format("the receiver says that {} frames have landed; {} had, and {} were "
                             "sent",
                             landed, first_, next_));
  }
  for (; first_ < landed; ++first_) {
    const Frame& frame = at(first_);
    if (frame.asks) --asks_;
    kept_from_ = frame.kept_end;
    if (frame.writer != nullptr && --frame.writer->unlanded == 0) frame.writer->landed.notify_one();
  }
  return {};
}

void FrameLog::ask_only_newest() {
  asks_ = 0;
  for (std::uint64_t number = first_; number < next_; ++number) slot(number).asks = false;
  if (first_ < next_) ask_newest();
}

void FrameLog::forget() {
  for (; first_ < next_; ++first_) {
    if (at(first_).writer != nullptr) at(first_).writer->landed.notify_one();
  }
}

}  // namespace gcr::transport
