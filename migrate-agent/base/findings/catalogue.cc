#include "migrate-agent/base/findings/catalogue.h"

#include <algorithm>
#include <array>
#include <cassert>

namespace gcr::findings {
namespace {

using enum Side;
constexpr std::optional<Side> kEither;

constexpr auto kCatalogue = std::to_array<Kind>({
#define GCR_FINDING(name, id, severity, side, about_gpus, acceptable, why, remedy) \
  {id, proto::Finding::severity, side, about_gpus, acceptable, why, remedy},
#include "migrate-agent/base/findings/catalogue.def"
#undef GCR_FINDING
});

constexpr std::string_view kWithoutInfiniBand =
    "Start the program with NCCL_IB_DISABLE=1 and, if it uses UCX, UCX_TLS=^ib and "
    "UCX_SOCKADDR_TLS_PRIORITY=tcp.";

constexpr auto kObjectRemedies = std::to_array<ObjectRemedy>({
    {"/dev/infiniband/", kWithoutInfiniBand},
    {"anon_inode:[infinibandevent]", kWithoutInfiniBand},
    {"/dev/gdrdrv",
     "Start the program with NCCL_GDRCOPY_ENABLE=0 and, if it uses UCX, UCX_TLS=^gdr_copy "
     "(UCX_TLS=^ib,gdr_copy without InfiniBand too)."},
});

const char* host_name(Side side) { return side == kSource ? "source" : "destination"; }

/// Returns a flag of the kind with this id; false for an id of another release.
bool is_one_with(bool Kind::*column, std::string_view id) {
  const auto kind = std::ranges::find(kCatalogue, id, &Kind::id);
  return kind != kCatalogue.end() && (*kind).*column;
}

}  // namespace

std::span<const Kind> catalogue() { return kCatalogue; }

std::span<const ObjectRemedy> object_remedies() { return kObjectRemedies; }

const Kind& kind_of(Id id) { return kCatalogue[static_cast<std::size_t>(id)]; }

bool can_be_accepted(std::string_view id) { return is_one_with(&Kind::acceptable, id); }

bool is(const proto::Finding& finding, Id id) { return finding.id() == kind_of(id).id; }

bool is_about_gpus(const proto::Finding& finding) {
  return is_one_with(&Kind::about_gpus, finding.id());
}

proto::Finding make_finding(Id id, Side side, std::string found) {
  const Kind& kind = kind_of(id);
  proto::Finding finding;
  finding.set_id(std::string(kind.id));
  finding.set_severity(kind.severity);
  finding.set_found(std::move(found));
  finding.set_why(std::string(kind.why));
  finding.set_remedy(std::string(kind.remedy));
  finding.set_host(host_name(side));
  return finding;
}

bool Findings::has(std::string_view id, std::string_view found) const {
  return std::ranges::any_of(
      list_, [&](const proto::Finding& one) { return one.id() == id && one.found() == found; });
}

proto::Finding* Findings::append(Id id, std::string found) {
  if (has(kind_of(id).id, found)) return nullptr;
  assert(kind_of(id).side.value_or(side_) == side_);
  const std::size_t number = ++added_[id];
  if (number > kMostOfAKind) return nullptr;
  if (number == kMostOfAKind) found += ", and there are more like this";
  return &list_.emplace_back(make_finding(id, side_, std::move(found)));
}

void Findings::add(Id id, std::string found) { append(id, std::move(found)); }

void Findings::add_object(Id id, std::string found, std::string_view name) {
  proto::Finding* const finding = append(id, std::move(found));
  const auto known = std::ranges::find_if(
      kObjectRemedies, [name](const ObjectRemedy& one) { return name.starts_with(one.name); });
  if (finding == nullptr || known == kObjectRemedies.end()) return;
  finding->set_remedy(std::string(known->remedy));
}

void Findings::take(std::vector<proto::Finding> findings) {
  for (proto::Finding& finding : findings) {
    if (!has(finding.id(), finding.found())) list_.push_back(std::move(finding));
  }
}

void Findings::accept(const google::protobuf::RepeatedPtrField<std::string>& ids) {
  for (proto::Finding& finding : list_) {
    if (!can_be_accepted(finding.id()) || std::ranges::find(ids, finding.id()) == ids.end()) {
      continue;
    }
    finding.set_severity(proto::Finding::WARNING);
  }
}

bool Findings::has_blocker() const { return std::ranges::any_of(list_, is_blocker); }

bool is_blocker(const proto::Finding& finding) {
  return finding.severity() != proto::Finding::WARNING;
}

std::string reason_of(const std::vector<proto::Finding>& findings) {
  std::string text;
  for (const proto::Finding& finding : findings) {
    if (!is_blocker(finding)) continue;
    if (!text.empty()) text += "; ";
    text += note_of(finding);
  }
  return text;
}

std::string note_of(const proto::Finding& finding) {
  return finding.found() + " [" + finding.id() + "]";
}

}  // namespace gcr::findings
