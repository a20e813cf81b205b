// The images core-*.img of a dump, one for each thread, while they are still with the agent.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "src/base/result.h"

namespace gcr::criu {

/// The whole content of an image of the dump, by CRIU's name for it.
using ReadImage = std::function<Result<std::string>(const std::string& name)>;
using WriteImage = std::function<Status(const std::string& name, const std::string& content)>;

/// The name of the image of a thread, by its id in its own PID namespace.
std::string core_image(pid_t in_namespace);

/// kDataLoss if the image is not whole.
Result<wire::Core> core_in(const std::string& image);
std::string image_of(const wire::Core& core);

}  // namespace gcr::criu
