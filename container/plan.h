// What gcr-runtime does with a container that an engine creates.
#pragma once

#include <optional>
#include <string>

#include "container/runtime_config.h"
#include "container/spec.h"

namespace gcr::container {

struct Plan {
  std::optional<Insertion> insertion;  ///< none: the container is left as it is
  std::string note;                    ///< for the log, a clause about the container; may be empty
  bool receives = false;               ///< the container waits for a job
};

/// Examines the configuration, the image and the notes of jobs that have come. Fails if the
/// container asks to receive a job and cannot: started instead, its program would run twice. Also
/// fails if gcr-init or the preload library is not installed.
Result<Plan> plan_container(const Spec& spec, const std::filesystem::path& bundle,
                            const RuntimeConfig& config);

}  // namespace gcr::container
