#include "migrate-agent/migration/target/store/signers.h"

#include "migrate-agent/worker/config/certificates.h"

namespace gcr::migration {

Result<store::SignerRule> signer_rule(const worker::Config& config) {
  GCR_ASSIGN(const std::string self, store::own_name(config.tls));
  return [&peers = config.peers, self](const std::string& agent) {
    return worker::check_peer(peers, self, agent, "checkpoints");
  };
}

}  // namespace gcr::migration
