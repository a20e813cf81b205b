#include "migrate-agent/migration/target/agent/agent_target.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <asio/post.hpp>
#include <span>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/transfer/negotiation/outgoing_data.h"
#include "migrate-agent/worker/runtime/offload.h"
#include "src/base/units.h"

namespace gcr::migration {
namespace {

using asio::awaitable;
using proto::Envelope;

constexpr std::chrono::seconds kConnectTimeout{10};
constexpr unsigned kClockSamples = 8;

}  // namespace

AgentTarget::AgentTarget(asio::io_context& io, control::AgentAddress agent, Uuid migration,
                         std::function<void(const Error&)> on_lost)
    : io_(io), agent_(std::move(agent)), migration_(migration), on_lost_(std::move(on_lost)) {}

AgentTarget::~AgentTarget() {
  images_.reset();
  channel_.reset();
  asio::post(io_, [link = std::move(link_)] {
    if (link != nullptr) link->close();
  });
}

std::string AgentTarget::common_name() const {
  return link_ == nullptr ? std::string() : link_->peer().common_name;
}

Status AgentTarget::check() const {
  const std::lock_guard lock(mutex_);
  if (interrupted_) return *interrupted_;
  return {};
}

/// A call in progress ends when its connection is closed. A later one is refused by check(). Both
/// happen on the thread of `io_`, so no call is missed.
void AgentTarget::interrupt(const Error& why) {
  const std::lock_guard lock(mutex_);
  if (!interrupted_) interrupted_ = why;
  if (channel_ != nullptr) channel_->cancel();
  asio::post(io_, [link = link_] {
    if (link != nullptr) link->abandon_call();
  });
}

awaitable<Status> AgentTarget::connect() {
  auto connected = co_await control::ControlChannel::connect(
      agent_.endpoint, {control::ConnectionKind::kControl, migration_}, agent_.tls, kConnectTimeout,
      agent_.own_host);
  GCR_CO_TRY(connected);
  const std::lock_guard lock(mutex_);
  if (interrupted_) co_return *interrupted_;
  link_ = std::make_shared<PeerLink>(io_, std::move(*connected), agent_.silence);
  co_return Status();
}

awaitable<Result<Envelope>> AgentTarget::call(Envelope request) {
  GCR_CO_TRY(check());
  co_return co_await link_->call(std::move(request));
}

/// Sends `request` in an envelope, and gives the reply's.
template <class Request>
Result<Envelope> AgentTarget::ask(Request* (Envelope::*field)(), const Request& request) {
  Envelope envelope;
  *(envelope.*field)() = request;
  return worker::on_io(io_, call(std::move(envelope)));
}

Result<proto::PreflightReply> AgentTarget::preflight(const proto::PreflightRequest& request) {
  GCR_TRY(worker::on_io(io_, connect()));
  GCR_TRY(fault::point("source.connected"));
  GCR_ASSIGN(Envelope reply, ask(&Envelope::mutable_preflight_request, request));
  // Heartbeats begin only now: the first message on the connection has to be this request.
  asio::post(io_, [link = link_, on_lost = on_lost_] { link->watch(on_lost); });
  return std::move(*reply.mutable_preflight_reply());
}

Result<PreparedTarget> AgentTarget::prepare(const proto::PrepareRequest& request) {
  GCR_ASSIGN(Envelope reply, ask(&Envelope::mutable_prepare_request, request));
  PreparedTarget prepared{std::move(*reply.mutable_prepare_reply())};
  GCR_TRY(open_channel(request, prepared.reply));
  std::ranges::copy(std::as_bytes(std::span(request.digest_key())).first(secret_.size()),
                    secret_.begin());
  image_region_ = prepared.reply.image_region();
  image_region_bytes_ = prepared.reply.image_region_bytes();
  GCR_TRY(worker::on_io(io_, compare_clocks(prepared)));
  return prepared;
}

Status AgentTarget::open_channel(const proto::PrepareRequest& request,
                                 proto::PrepareReply& prepared) {
  const transfer::OutgoingOptions options{
      .migration = migration_,
      .destination = agent_.endpoint,
      .wish = {request.transport(), request.plaintext(), request.lanes()},
      .offer = request.offer(),
      .tls = agent_.tls->native_handle(),
      .peer_timeout = agent_.silence};
  std::vector<std::string> notes;
  auto opened = transfer::open_channel(prepared, options, notes);
  if (!opened && opened.error().code() != Code::kProtocol &&
      prepared.transport() == proto::TRANSPORT_RDMA) {
    GCR_TRY(fall_back(prepared, opened.error()));
    opened = transfer::open_channel(prepared, options, notes);
  }
  GCR_TRY(opened);
  for (std::string& note : notes) prepared.add_notes(std::move(note));
  const std::lock_guard lock(mutex_);
  channel_ = std::move(*opened);
  if (interrupted_) return *interrupted_;
  return {};
}

/// Changes `prepared` to TCP. The destination refuses if the operator has required RDMA.
Status AgentTarget::fall_back(proto::PrepareReply& prepared, const Error& why) {
  spdlog::info("falling back from RDMA to TCP: {}", why.message());
  proto::FallBackRequest request;
  request.set_reason(why.message());
  GCR_ASSIGN(Envelope reply, ask(&Envelope::mutable_fall_back_request, request));
  prepared.set_transport(proto::TRANSPORT_TCP);
  prepared.set_transport_reason(why.message());
  prepared.set_encrypted(reply.fall_back_reply().encrypted());
  *prepared.mutable_data_addresses() = reply.fall_back_reply().data_addresses();
  return {};
}

/// Measures the offset of the two monotonic clocks with the fastest of several requests. The reply
/// was made between sending and receiving, most likely in the middle (as in NTP, RFC 5905).
awaitable<Status> AgentTarget::compare_clocks(PreparedTarget& prepared) {
  using Clock = std::chrono::steady_clock;
  Clock::duration quickest = Clock::duration::max();
  Envelope question;
  question.mutable_clock_request();
  for (unsigned i = 0; i < kClockSamples; ++i) {
    const auto asked = Clock::now();
    auto reply = co_await call(question);
    const auto trip = Clock::now() - asked;
    GCR_CO_TRY(reply);
    if (trip >= quickest) continue;
    quickest = trip;
    const Clock::time_point there{std::chrono::nanoseconds(reply->clock_reply().monotonic_ns())};
    clock_offset_ms_ = in_milliseconds(there - (asked + trip / 2));
  }
  prepared.clock_offset_ms = clock_offset_ms_;
  prepared.clock_error_ms = in_milliseconds(quickest) / 2;
  co_return Status();
}

Result<proto::BuffersReply> AgentTarget::change(const proto::BuffersRequest& request) {
  GCR_ASSIGN(Envelope reply, ask(&Envelope::mutable_buffers_request, request));
  return std::move(*reply.mutable_buffers_reply());
}

void AgentTarget::tell_paused(bool paused) {
  asio::post(io_, [link = link_, paused] { link->set_paused(paused); });
}

Result<images::Sink*> AgentTarget::image_sink(store::Compression compression,
                                              double link_bytes_per_s) {
  GCR_ASSIGN(images::ImageSender* const sender, image_sender(compression, link_bytes_per_s));
  return sender;
}

Result<images::ImageSender*> AgentTarget::image_sender(store::Compression compression,
                                                       double link_bytes_per_s) {
  GCR_ASSIGN(images_, images::ImageSender::create(*channel_, {.region = image_region_,
                                                              .region_bytes = image_region_bytes_,
                                                              .compression = compression,
                                                              .link_bytes_per_s = link_bytes_per_s,
                                                              .secret = secret_}));
  return images_.get();
}

Result<proto::CarryReply> AgentTarget::carry(const proto::CarryRequest& request) {
  GCR_ASSIGN(Envelope reply, ask(&Envelope::mutable_carry_request, request));
  return std::move(*reply.mutable_carry_reply());
}

Result<proto::RestoreReply> AgentTarget::restore(const proto::RestoreRequest& request) {
  if (channel_) channel_->end();
  GCR_ASSIGN(Envelope reply, ask(&Envelope::mutable_restore_request, request));
  proto::RestoreReply& vote = *reply.mutable_restore_reply();
  for (proto::PhaseTime& phase : *vote.mutable_phases()) {
    phase.set_start_ms(phase.start_ms() - clock_offset_ms_);
  }
  return std::move(vote);
}

Result<commit::CommitAnswer> AgentTarget::commit() {
  Envelope envelope;
  envelope.mutable_commit_request()->set_migration_id(to_bytes(migration_));
  Result<Envelope> reply;
  if (const Status unharmed = fault::point("source.committed"); !unharmed) reply = unharmed.error();
  if (reply) reply = worker::on_io(io_, link_->call(envelope));
  if (reply) return commit::answer_of(*reply);
  // The destination's worker ends with its connection, and its recovery accepts new ones.
  asio::post(io_, [link = link_] { link->close(); });
  return reply.error();
}

void AgentTarget::abort(const std::string& reason) {
  if (channel_ != nullptr) channel_->cancel();
  if (link_ == nullptr) return;
  Envelope envelope;
  envelope.mutable_abort_request()->set_reason(reason);
  const auto aborted = worker::on_io(io_, link_->call(envelope));
  if (!aborted) {
    spdlog::info("the destination has not confirmed the abort: {}", aborted.error().message());
  }
}

}  // namespace gcr::migration
