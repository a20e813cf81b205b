// A block: the content of one slot of the ring. Until the files are named it is all that the
// destination knows of an image. It covers a window of kWindowBytes of one image and holds those
// pages of the window that are not full of zeros, or not what an earlier round sent.
//
//   byte  0  magic    "GCI1"
//         4  file     u32   the sender's choice, below kMaxFiles
//         8  offset   u64   of the window in the image, a multiple of kWindowBytes
//        16  raw      u32   bytes of the window that the image has: kWindowBytes except at its end
//        20  stored   u32   bytes that follow the header
//        24  codec    u16   Codec
//        26  memory   u16   whose pages the image has: a number below kMaxMemories, or 0 for no
//                           memory's; with the highest bit, shared memory's
//        28  round    u32   below kMaxRounds: a page replaces what an earlier round sent for it
//        32  present  256 bits, the lowest first: pages that the payload holds, in order
//        64  payload        these pages, compressed by the codec; the last page of an image may be
//                           shorter
//
// All numbers are little-endian.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "src/base/result.h"
#include "src/base/units.h"
#include "store/codec.h"

namespace gcr::images {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kWindowBytes = kMiB;
inline constexpr std::size_t kPagesPerWindow = kWindowBytes / kPageBytes;
inline constexpr std::size_t kBlockHeaderBytes = 64;
inline constexpr std::size_t kSlotBytes = kBlockHeaderBytes + kWindowBytes;
inline constexpr std::uint32_t kMaxFiles = 65536;
inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 47;  ///< an address fits
inline constexpr std::uint32_t kMaxRounds = kWindowBytes;
inline constexpr std::uint32_t kMaxMemories = 1 << 15;

/// How the names of images begin that have memory of one process which CRIU left out: an offset is
/// an address.
inline constexpr std::string_view kPrivateMemory = "private-memory-";
/// The same for memory without a name that processes map: an offset is one in the memory.
inline constexpr std::string_view kSharedMemory = "shared-memory-";

using PresentPages = std::bitset<kPagesPerWindow>;

struct BlockHeader {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint32_t raw_bytes = 0;
  std::uint32_t stored_bytes = 0;
  store::Codec codec = store::Codec::kInvalid;
  std::uint16_t memory = 0;
  bool shared = false;  ///< the memory
  std::uint32_t round = 0;
  PresentPages present = {};

  bool operator==(const BlockHeader&) const = default;

  /// How long the payload is when it is not compressed.
  std::size_t payload_bytes() const;
};

using BlockHeaderBytes = std::array<std::byte, kBlockHeaderBytes>;

/// `header` must be one that decode() accepts.
BlockHeaderBytes encode(const BlockHeader& header);

/// Checks everything that can be checked: all numbers are valid afterwards. kProtocol.
Result<BlockHeader> decode(const BlockHeaderBytes& bytes);

/// Those of `pages` of `window` that are not full of zeros; its last page may be shorter.
PresentPages pages_with_data(std::span<const std::byte> window,
                             const PresentPages& pages = PresentPages().set());

/// Moves these pages of `window` to its front, without gaps.
void pack(std::span<std::byte> window, const PresentPages& pages);

}  // namespace gcr::images
