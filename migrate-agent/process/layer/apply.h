// Applies a pack (pack_writer.h) to a destination container, which its engine has made from the
// same image, through the container's view. Nothing in the pack leads out of the tree: no symbolic
// link is followed, and no mount point is crossed, removed or replaced, be it a volume, resolv.conf
// or /dev. Files are replaced, never written to in place.
#pragma once

#include "migrate-agent/process/layer/rules.h"
#include "migrate-agent/process/layer/tree.h"
#include "src/base/result.h"

namespace gcr::layer {

/// `tree`: the destination's. `fd` remains the caller's, and ends with the pack. The notes say what
/// was left out because it is a mount point here.
/// Needs CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_MKNOD and CAP_SETFCAP.
/// After an error the tree has any part of the pack: the container is to be discarded. kProtocol
/// for what no agent would send, kResourceExhausted beyond the limits.
Result<Notes> apply_pack(const Tree& tree, int fd, const Limits& limits);

}  // namespace gcr::layer
