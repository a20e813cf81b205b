// What the door's refusals mean, in words.
#pragma once

#include <sys/types.h>

#include <string>

#include "preload/door_protocol.h"
#include "src/base/result.h"

namespace gcr::gpu {

/// "work on its GPUs did not finish", and the like.
const char* obstacle_in_words(door::Obstacle obstacle);

/// What the process says of calls past its gate, in printable characters; "" if nothing.
std::string past_gate_in_words(const door::DoorReply& reply);

/// The Error for a reply whose outcome is not kOk. `doing` is what was asked, as in "cannot
/// <doing>".
Error refusal(const door::DoorReply& reply, pid_t pid, const std::string& doing);

}  // namespace gcr::gpu
