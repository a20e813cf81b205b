// The source with the gate closed: the last round, at the same time checkpoint and dump, and the
// restore at the destination, up to its vote.
#include <fmt/format.h>

#include <asio/experimental/awaitable_operators.hpp>

#include "migrate-agent/fault/fault.h"
#include "migrate-agent/memory/zero_pages.h"
#include "migrate-agent/process/named_files.h"
#include "migrate-agent/roles/source.h"
#include "src/base/log.h"

namespace gcr::agent {
namespace {

constexpr std::chrono::seconds kLockTimeout{10};

}  // namespace

using asio::awaitable;

awaitable<Status> Source::switch_over() {
  using asio::experimental::awaitable_operators::operator&&;
  const Phases::Timer timer(phases_, "course", "switchover");
  // The mover holds VRAM, so its last round runs in parallel with the steps on the process.
  auto [vram_sent, control_sent] = co_await (send_last_round() && send_control_state());
  // A destination that fails gives the reason on the control channel; its data connections only
  // break.
  GCR_CO_TRY(control_sent);
  GCR_CO_TRY(vram_sent);
  GCR_CO_TRY(fault::point("source.flushed"));
  GCR_CO_TRY(check());
  co_return co_await restore_there();
}

awaitable<Status> Source::send_last_round() {
  const auto began = Phases::Clock::now();
  co_return co_await offload(context_.blocking, [&]() -> Status {
    if (!limits_.strict) GCR_TRY(precopy_->look());  // else close_gate() has looked
    GCR_TRY(precopy_->send_last());
    report_.set_buffers(vram_->count());
    report_.set_vram_bytes(vram_->total_bytes());
    last_round_took_ = Phases::Clock::now() - began;
    return {};
  });
}

awaitable<Status> Source::send_control_state() {
  const auto began = Phases::Clock::now();
  co_return co_await offload(context_.blocking, [&]() -> Status {
    GCR_TRY(phases_.time("process", "arm keeper", [&] { return arm_keeper(); }));
    GCR_TRY(phases_.time("process", "detach VRAM", [&] { return process_->detach(); }));
    GCR_TRY(fault::point("source.detached"));
    GCR_TRY(phases_.time("process", "control checkpoint", [&]() -> Status {
      GCR_TRY(process_->lock(kLockTimeout));
      GCR_TRY(fault::point("source.locked"));
      return process_->checkpoint();
    }));
    GCR_TRY(fault::point("source.checkpointed"));
    const auto dropped = phases_.time("process", "drop zero pages", [&] {
      return process::drop_zero_pages(process_->access(), process_->process());
    });
    // Pages that were not dropped are moved.
    if (!dropped) spdlog::warn("pages of zeros stay: {}", dropped.error().message());
    GCR_ASSIGN(dumped_, phases_.time("process", "criu dump",
                                     [&] { return images_->dump(*process_, *image_sender_); }));
    GCR_ASSIGN(named_, phases_.time("process", "read files",
                                    [&] { return process::named_files(process_->pid()); }));
    GCR_TRY(fault::point("source.dumped"));
    GCR_ASSIGN(sent_images_,
               phases_.time("images", "flush images", [&] { return image_sender_->finish(); }));
    report_.set_image_bytes(sent_images_.raw_bytes);
    report_.set_sent_image_bytes(sent_images_.sent_bytes);
    report_.set_compression(std::string(images::to_string(sent_images_.codec)));
    report_.set_image_mode(images_->in_rounds() ? "rounds" : "stream");
    report_.set_image_mode_reason(images_->reason());
    control_took_ = Phases::Clock::now() - began;
    return {};
  });
}

awaitable<Status> Source::restore_there() {
  proto::Envelope envelope;
  proto::RestoreRequest& request = *envelope.mutable_restore_request();
  std::uint64_t chunks = 0;
  for (const auto& [id, digests] : vram_->digests()) {
    proto::BufferDigests& out = *request.add_digests();
    out.set_buffer_id(id.value);
    out.set_digests(digests.data(), digests.size() * sizeof(digest::Digest));
    chunks += digests.size();
  }
  for (const images::SentFile& file : sent_images_.files) {
    proto::ImageFile& out = *request.add_files();
    out.set_name(file.name);
    out.set_size_bytes(file.size_bytes);
    out.set_id(file.id);
    out.set_digest(file.digest.to_bytes());
  }
  proto::DumpedMember& member = *request.add_members();
  member.mutable_credentials()->Assign(dumped_.credentials.begin(), dumped_.credentials.end());
  for (process::NamedFile& file : named_) *member.add_named() = std::move(file.fact);
  tell("restore", fmt::format("restoring at {}", destination_.to_string()));
  journal::Record record;
  record.mutable_awaiting();
  GCR_CO_TRY(co_await note(commit::SourceEvent::kAskRestore, std::move(record)));
  GCR_CO_TRY(fault::point("source.awaiting"));
  auto reply = co_await peer_->call(envelope);
  GCR_CO_TRY(reply);
  GCR_CO_TRY(fault::point("source.voted"));
  const proto::RestoreReply& answer = reply->restore_reply();
  if (answer.verified_chunks() != chunks) {
    co_return Error(Code::kDataLoss, fmt::format("the destination verified {} of {} chunks",
                                                 answer.verified_chunks(), chunks));
  }
  report_.set_verified(true);
  report_.set_prefilled(answer.prefilled());
  for (const std::string& note : answer.notes()) report_.add_notes(note);
  const double to_ours_ms = phases_.since_origin_ms(Phases::Clock::time_point{} - clock_offset_);
  for (proto::PhaseTime phase : answer.phases()) {
    phase.set_start_ms(phase.start_ms() + to_ours_ms);
    *report_.add_phases() = std::move(phase);
  }
  co_return Status();
}

}  // namespace gcr::agent
