// The destination's end of a migration's data: a receiver of the planned transport, which TCP can
// replace if that is RDMA.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/transfer/negotiation/negotiation.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/uuid.h"
#include "transport/tcp/tcp.h"

namespace gcr::transfer {

/// Methods belong to one thread, those of receiver() to any; `on_landed` comes on the transport's
/// threads.
class IncomingData {
 public:
  struct Options {
    SSL_CTX* tls = nullptr;  ///< outlives the object
    std::string token;       ///< what every connection must prove
    Uuid migration;          ///< that they are for
    transport::OnLanded on_landed;
    std::vector<std::string> hosts;  ///< where data connections reach this host; may be empty
    std::string local_host;  ///< where the source reached this host; for RDMA without `hosts`
    std::chrono::milliseconds peer_timeout{30'000};
  };

  /// kUnavailable and the like if the transport cannot be set up here.
  static Result<std::unique_ptr<IncomingData>> open(const DataPlan& plan, Options options);

  /// For the source: where its connections should go.
  const std::vector<proto::DataAddress>& addresses() const { return addresses_; }

  /// For regions, the window and health(); fall_back() replaces it. A region's memory stays until
  /// it is removed or this is destroyed.
  transport::Receiver& receiver() const { return *receiver_; }

  /// Takes a TCP connection whose preface was read. kRefused if none is expected.
  Status add_connection(UniqueFd socket);

  /// Replaces the RDMA receiver by a TCP receiver without regions, before anything was written.
  /// kProtocol if it is TCP already.
  Status fall_back(const DataPlan& plan);

 private:
  explicit IncomingData(Options options) : options_(std::move(options)) {}
  Status open_receiver(const DataPlan& plan);
  Status open_tcp(const DataPlan& plan);
  Status open_rdma(const DataPlan& plan);

  Options options_;
  std::vector<proto::DataAddress> addresses_;
  std::unique_ptr<transport::Receiver> receiver_;
  transport::TcpReceiver* tcp_ = nullptr;  ///< receiver_, if that is TCP's
};

}  // namespace gcr::transfer
