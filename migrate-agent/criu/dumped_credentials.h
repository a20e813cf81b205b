// The rights that CRIU's images would give to threads. CRIU reads them inside the process, by code
// and in memory that the process and others of its user can change: before an image is sent it is
// compared with what the kernel says.
#pragma once

#include <sys/types.h>

#include <vector>

#include "migrate-agent/criu/core_images.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::criu {

/// `pid` was just dumped and is stopped. Gives the rights of each of its threads, from the
/// kernel, if the images say the same. kDataLoss with thread, field and both values if they do not.
///
/// The kernel does not tell securebits: an image in which they are not 0 is refused. A thread that
/// forges a 0 loses restrictions that its parents had set, and gains no id and no capability.
Result<std::vector<proto::Credentials>> check_dumped_credentials(pid_t pid, const ReadImage& read);

}  // namespace gcr::criu
