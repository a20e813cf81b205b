#include "migrate-agent/source/outgoing_images.h"

#include <fmt/format.h>

#include "migrate-agent/memory/private_memory.h"
#include "migrate-agent/source/examination.h"

namespace gcr::agent {

namespace fs = std::filesystem;

Result<OutgoingImages> OutgoingImages::create(const criu::Command& criu, const SourceJob& process,
                                              fs::path scratch,
                                              const proto::MigrateRequest& request,
                                              std::uint64_t resident_bytes) {
  OutgoingImages images(criu, process, std::move(scratch));
  images.options_.outside_tcp = outside_tcp(request);
  const proto::ImageMode requested = request.image_mode();
  if (requested == proto::IMAGE_MODE_STREAM) {
    images.reason_ = "asked for";
    return images;
  }
  const bool asked = requested == proto::IMAGE_MODE_ROUNDS;
  const Status tracking = criu::check_memory_tracking(criu);
  if (!tracking && asked) {
    return Error(Code::kRefused, tracking.error().message() + " [no-dirty-tracking]");
  }
  images.in_rounds_ = asked || (tracking && resident_bytes >= kWorthRounds);
  if (asked) {
    images.reason_ = "asked for";
  } else if (!tracking) {
    images.reason_ = tracking.error().message();
  } else {
    images.reason_ =
        fmt::format("the process has {} of resident memory", format_bytes(resident_bytes));
  }
  return images;
}

fs::path OutgoingImages::directory_of_round(unsigned round) const {
  return scratch_ / fmt::format("pre-{}", round);
}

Status OutgoingImages::pre_dump(images::Sink& sink) {
  const fs::path directory = directory_of_round(rounds_ + 1);
  std::error_code error;
  if (!fs::create_directory(directory, error)) {
    return Error::from_errno(error.value(), fmt::format("cannot create {}", directory.string()));
  }
  const fs::path parent = rounds_ == 0 ? fs::path() : directory_of_round(rounds_);
  GCR_TRY(criu::pre_dump(criu_, pid_, directory, parent));
  ++rounds_;
  return images::take_directory(sink, directory.string(), fmt::format("pre-{}/", rounds_));
}

void OutgoingImages::round(images::Sink& sink) {
  prepared_.reset();  // it knows another parent
  const Status dumped = pre_dump(sink);
  if (dumped) return;
  in_rounds_ = false;
  reason_ = dumped.error().message();
}

Status OutgoingImages::prepare() {
  if (!in_rounds_) {
    options_.leave_out = [memory = process::PrivateMemory(pid_)](pid_t task) mutable {
      return memory.of(task);
    };
    GCR_ASSIGN(prepared_, criu::PreparedDump::streaming(criu_, pid_, scratch_, options_));
    return {};
  }
  const fs::path parent = rounds_ == 0 ? fs::path() : directory_of_round(rounds_);
  GCR_ASSIGN(prepared_, criu::PreparedDump::to_directory(criu_, pid_, scratch_, parent, options_));
  return {};
}

Result<std::vector<proto::Credentials>> OutgoingImages::dump(SourceJob& process, images::Sink& sink,
                                                             const memory_files::Renamed& renamed) {
  GCR_ASSIGN(auto credentials,
             process.dump(
                 *prepared_,
                 [&](const std::string& name, UniqueFd content) {
                   return sink.take(name, std::move(content));
                 },
                 renamed,
                 [&](const std::string& name, const std::vector<AddressRange>& ranges,
                     const ReadMemory& read) { return sink.take_memory(name, ranges, read); }));
  if (in_rounds_) GCR_TRY(images::take_directory(sink, scratch_.string(), ""));
  return credentials;
}

}  // namespace gcr::agent
