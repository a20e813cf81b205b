#include "migrate-agent/transfer/negotiation/incoming_data.h"

#include "src/control/control_channel.h"
#include "transport/rdma/rdma.h"

namespace gcr::transfer {

Result<std::unique_ptr<IncomingData>> IncomingData::open(const DataPlan& plan, Options options) {
  std::unique_ptr<IncomingData> data(new IncomingData(std::move(options)));
  GCR_TRY(data->open_receiver(plan));
  return data;
}

Status IncomingData::open_receiver(const DataPlan& plan) {
  addresses_.clear();
  return plan.transport == proto::TRANSPORT_RDMA ? open_rdma(plan) : open_tcp(plan);
}

Status IncomingData::open_tcp(const DataPlan& plan) {
  for (const std::string& host : options_.hosts) addresses_.emplace_back().set_host(host);
  transport::TcpReceiverOptions tcp{.token = options_.token,
                                    .transfer = options_.migration,
                                    .max_lanes = plan.lanes,
                                    .on_landed = options_.on_landed,
                                    .peer_timeout = options_.peer_timeout,
                                    .reconnect_window = options_.peer_timeout};
  if (plan.encrypted) {
    tcp.tls = options_.tls;
    tcp.verify_peer = [](SSL* ssl) { return control::verify_agent(ssl); };
  }
  auto receiver = transport::receive_tcp(std::move(tcp));
  tcp_ = receiver.get();
  receiver_ = std::move(receiver);
  return {};
}

Status IncomingData::open_rdma(const DataPlan& plan) {
  transport::RdmaReceiverOptions rdma{.addresses = {},
                                      .token = options_.token,
                                      .max_lanes = plan.lanes,
                                      .on_landed = options_.on_landed,
                                      .peer_timeout = options_.peer_timeout};
  for (const std::string& host : options_.hosts) rdma.addresses.push_back({.host = host});
  if (rdma.addresses.empty()) rdma.addresses.push_back({.host = options_.local_host});
  GCR_ASSIGN(auto receiver, transport::listen_rdma(std::move(rdma)));
  for (const transport::Address& listening : receiver->addresses()) {
    proto::DataAddress& address = addresses_.emplace_back();
    address.set_host(listening.host);
    address.set_port(listening.port);
  }
  tcp_ = nullptr;
  receiver_ = std::move(receiver);
  return {};
}

Status IncomingData::add_connection(UniqueFd socket) {
  if (tcp_ == nullptr) return Error(Code::kRefused, "this migration's data comes by RDMA");
  return tcp_->add_connection(std::move(socket));
}

Status IncomingData::fall_back(const DataPlan& plan) {
  if (tcp_ != nullptr) return Error(Code::kProtocol, "the data goes over TCP already");
  receiver_.reset();  // its keys to the regions end here
  return open_receiver(plan);
}

}  // namespace gcr::transfer
