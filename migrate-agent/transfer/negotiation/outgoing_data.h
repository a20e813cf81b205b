// The source's end of a migration's data: connects to where the destination says.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/transfer/negotiation/negotiation.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"
#include "src/control/control_channel.h"
#include "transport/tcp/tcp.h"

namespace gcr::transfer {

struct OutgoingOptions {
  Uuid migration;
  control::Endpoint destination;  ///< its agent, as the source reached it
  DataWish wish;                  ///< the operator's
  proto::DataOffer offer;         ///< as the destination was told
  SSL_CTX* tls = nullptr;         ///< needed during the call only
  std::chrono::milliseconds peer_timeout{30'000};
};

/// Connects all lanes by the transport that `prepared` names, encrypted if it says so. `notes` has
/// what failed but was not needed. The peer's certificate must be an agent's, for
/// the destination's host. kProtocol, and nothing is connected, if wish and offer do not allow
/// `prepared`.
Result<std::unique_ptr<transport::Channel>> open_channel(const proto::PrepareReply& prepared,
                                                         const OutgoingOptions& options,
                                                         std::vector<std::string>& notes);

}  // namespace gcr::transfer
