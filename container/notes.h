// What gcr-runtime has to know of earlier migrations. A note is an empty file in a directory that
// only root may write to; its name is one of
//
//   a key          the job of the migration with this key has come: the agent notes it when the job
//                  is about to run. A container receives once. If its engine starts it again, it
//                  starts its program, because no job comes a second time. Until then it waits
//                  again.
//   a container's  its job has left: the agent notes it once that is decided. Its engine must not
//   id             start its program a second time, also if its restart policy says so.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "src/base/result.h"

namespace gcr::container {

/// Returns whether there is a note. kRefused if another user may write to the directory.
Result<bool> has_note(const std::filesystem::path& directory, const std::string& name);

/// Returns the id that an engine has given a container, from the path of its control group as the
/// kernel or the container's configuration has it: the last 64 hexadecimal digits in a row. Empty
/// if there are none.
std::string id_in_group(std::string_view group);

}  // namespace gcr::container
