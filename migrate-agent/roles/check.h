// Preflight alone: what a migration would find on both sides, without starting one.
#pragma once

#include "migrate-agent/findings/catalogue.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::agent {

/// "in-migration" or "too-many-migrations" if that is what DaemonClient::ask_room() answered.
void note_room(const Status& answer, preflight::Findings& findings);

}  // namespace gcr::agent
