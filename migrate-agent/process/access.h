// Whether a process could open files by itself.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::process {

struct WantedAccess {
  std::string path;
  std::uint32_t access = 0;        ///< R_OK, W_OK, X_OK
  std::pair<dev_t, ino_t> file{};  ///< what must be found under that name
};

/// Looks up each file by its name with the file system ids, the groups and the capabilities of
/// `who`, in a thread of its own, and asks the kernel whether the access would be granted; nothing
/// is opened. Gives an errno for each: 0 if granted, ESTALE if the name leads elsewhere by now. An
/// error says why this could not be done.
Result<std::vector<int>> try_access(const proto::Credentials& who,
                                    const std::vector<WantedAccess>& wanted);

}  // namespace gcr::process
