#include "migrate-agent/transfer/negotiation/outgoing_data.h"

#include <fmt/format.h>

#include "transport/rdma/rdma.h"

namespace gcr::transfer {
namespace {

constexpr int kMaxDataAddresses = 64;

/// Where the destination wants connections; where nothing is said, as its agent was reached.
std::vector<transport::Address> addresses(const proto::PrepareReply& prepared,
                                          const OutgoingOptions& options) {
  std::vector<transport::Address> addresses;
  for (const proto::DataAddress& said : prepared.data_addresses()) {
    addresses.push_back({.host = said.host().empty() ? options.destination.host : said.host(),
                         .port = said.port() == 0 ? options.destination.port
                                                  : static_cast<std::uint16_t>(said.port())});
  }
  if (addresses.empty()) addresses.push_back({options.destination.host, options.destination.port});
  return addresses;
}

Result<std::unique_ptr<transport::Channel>> open_tcp(const proto::PrepareReply& prepared,
                                                     const OutgoingOptions& options,
                                                     std::vector<std::string>& notes) {
  const auto preface = control::Preface{control::ConnectionKind::kData, options.migration}.encode();
  const auto preface_bytes = std::as_bytes(std::span(preface));
  transport::TcpOptions tcp{.lanes = prepared.lanes(),
                            .token = prepared.data_token(),
                            .transfer = options.migration,
                            .preface = {preface_bytes.begin(), preface_bytes.end()},
                            .reconnect_window = options.peer_timeout,
                            .peer_timeout = options.peer_timeout};
  if (prepared.encrypted()) {
    tcp.tls = options.tls;
    tcp.verify_peer = [host = options.destination.host](SSL* ssl) {
      return control::verify_agent(ssl, host);
    };
  }
  return transport::connect(addresses(prepared, options), tcp, &notes);
}

Result<std::unique_ptr<transport::Channel>> open_rdma(const proto::PrepareReply& prepared,
                                                      const OutgoingOptions& options) {
  return transport::connect_rdma(addresses(prepared, options),
                                 {.lanes = prepared.lanes(),
                                  .token = prepared.data_token(),
                                  .peer_timeout = options.peer_timeout});
}

}  // namespace

Result<std::unique_ptr<transport::Channel>> open_channel(const proto::PrepareReply& prepared,
                                                         const OutgoingOptions& options,
                                                         std::vector<std::string>& notes) {
  GCR_TRY(check_decision(options.wish, options.offer, prepared.transport(), prepared.encrypted()));
  if (prepared.lanes() == 0 || prepared.lanes() > kMaxLanes ||
      prepared.data_addresses_size() > kMaxDataAddresses) {
    return Error(Code::kProtocol,
                 fmt::format("the destination asks for {} data connections to {} addresses",
                             prepared.lanes(), prepared.data_addresses_size()));
  }
  return prepared.transport() == proto::TRANSPORT_RDMA ? open_rdma(prepared, options)
                                                       : open_tcp(prepared, options, notes);
}

}  // namespace gcr::transfer
