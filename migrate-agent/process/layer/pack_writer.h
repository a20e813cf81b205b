// A pack: changes of a tree as an OCI image layer changeset, a pax tar archive.
//
// Removed names are files ".wh.NAME", emptied directories have a file ".wh..wh..opq". Names are
// bytes (hdrcharset=BINARY), attributes are SCHILY.xattr, sparse files are GNU's of version 1.0.
// A directory comes before what is in it, and the first name of a file before its others. An
// archive ends with two blocks of zeros; nothing follows them.
#pragma once

#include <cstdint>

#include "migrate-agent/process/layer/changes.h"
#include "migrate-agent/process/layer/rules.h"
#include "migrate-agent/process/layer/snapshot.h"
#include "migrate-agent/process/layer/tree.h"
#include "src/base/result.h"

namespace gcr::layer {

struct Packed {
  std::uint64_t bytes = 0;  ///< contents without holes
  Notes notes;              ///< sockets
};

/// Writes the changes to `fd`, which remains the caller's. Contents are read through the
/// container's view. Mount points, and what has vanished or changed its type since the scan, are
/// left out; a file that shrinks or grows has the size that it had when it was opened: the next
/// scan shows that. Blocks until the reader has taken all; the caller ignores SIGPIPE.
/// kResourceExhausted if the contents without holes are more than `max_bytes`. After an error the
/// pack is incomplete, and its reader finds that.
Result<Packed> write_pack(const Tree& tree, const Changes& changes, int fd,
                          std::uint64_t max_bytes);

}  // namespace gcr::layer
