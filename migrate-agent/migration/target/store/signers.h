// Which agents' checkpoints this agent restores.
#pragma once

#include "migrate-agent/worker/config/config.h"
#include "store/signing.h"

namespace gcr::migration {

/// Accepts checkpoints that were signed by this agent, or by an agent whose migrations it accepts
/// ([[peers]]). kInvalidArgument if this agent's certificate cannot be read. `config` outlives the
/// rule.
Result<store::SignerRule> signer_rule(const worker::Config& config);

}  // namespace gcr::migration
