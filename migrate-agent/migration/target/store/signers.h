// Whose checkpoints this agent believes.
#pragma once

#include "migrate-agent/worker/config/config.h"
#include "store/signing.h"

namespace gcr::migration {

/// Its own, and those of the agents whose migrations it accepts ([[peers]]). kInvalidArgument if
/// its certificate cannot be read. `config` outlives the rule.
Result<store::SignerRule> signer_rule(const worker::Config& config);

}  // namespace gcr::migration
