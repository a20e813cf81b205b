// What has to be sent for a destination that has one state of a tree to have another. No calls into
// the kernel.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "migrate-agent/process/layer/rules.h"
#include "migrate-agent/process/layer/snapshot.h"

namespace gcr::layer {

enum class Action {
  kRemove = 1,  ///< the destination may have something there
  kSend,        ///< make it, or replace what is there; a directory keeps what is in it
  kRebuild,     ///< make a directory that has only what is sent too
};

struct Change {
  Action action;
  Entry entry;
};

using Changes = std::map<std::string, Change, PathOrder>;

/// Compares two scans of a tree; `before` is empty in the first round. Everything is sent that
/// differs, that may have changed without a trace, or that is a name of a file that is sent.
Changes changes(const Snapshot& before, const Snapshot& now);

/// The content that is to be read for them, as the scan has counted it, without holes.
std::uint64_t content_bytes(const Changes& changes);

}  // namespace gcr::layer
