// The catalogue of preflight findings: for each its stable identifier, whether it forbids a
// migration, why it matters and the remedy. docs/preflight.md has the same table for operators.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/control.pb.h"

namespace gcr::findings {

/// One enumerator per finding: kNoProcess has the id "no-process".
enum class Id : std::uint8_t {
#define GCR_FINDING(name, ...) name,
#include "migrate-agent/base/findings/catalogue.def"
#undef GCR_FINDING
};
using enum Id;

/// The host of a finding.
enum class Side { kSource, kDestination };

struct Kind {
  std::string_view id;
  proto::Finding::Severity severity;
  std::optional<Side> side;  ///< whose agent reports it; none: either
  bool about_gpus;  ///< concerns taking a job off its GPUs; the others concern moving it to another
                    ///< host
  bool acceptable;  ///< a blocker that an operator may turn into a warning with --accept ID
  std::string_view why;     ///< one sentence, like the remedy
  std::string_view remedy;  ///< what to do about it
};

const Kind& kind_of(Id id);

/// Returns all kinds in the order of the documentation. Static.
std::span<const Kind> catalogue();

/// A remedy for particular devices and kernel objects, in place of that of the finding's kind.
struct ObjectRemedy {
  std::string_view name;  ///< prefix of the object's name: "/dev/…", "anon_inode:[…]"
  std::string_view remedy;
};

/// Returns all of them in the order of the documentation. Static.
std::span<const ObjectRemedy> object_remedies();

/// Returns whether an operator may turn this blocker into a warning.
bool can_be_accepted(std::string_view id);

/// Creates a finding; `found` is a sentence without a final full stop, with names and figures.
proto::Finding make_finding(Id id, Side side, std::string found);

bool is(const proto::Finding& finding, Id id);

/// Returns Kind::about_gpus; false for a finding of another release that this one does not know.
bool is_about_gpus(const proto::Finding& finding);

/// The findings of one examination of a host or a process, without duplicates: members of a job
/// often have the same ones.
class Findings {
 public:
  explicit Findings(Side side) : side_(side) {}

  Side side() const { return side_; }
  /// Adds a finding; at most kMostOfAKind of one kind, and the last one says that there are more.
  void add(Id id, std::string found);
  /// Adds a finding about a device or kernel object called `name`, which may have its own remedy.
  void add_object(Id id, std::string found, std::string_view name);
  void take(std::vector<proto::Finding> findings);
  /// Turns the blockers with these ids into warnings if they can be accepted.
  void accept(const google::protobuf::RepeatedPtrField<std::string>& ids);
  bool has_blocker() const;

  const std::vector<proto::Finding>& list() const { return list_; }
  std::vector<proto::Finding> release() { return std::move(list_); }

 private:
  bool has(std::string_view id, std::string_view found) const;
  /// Returns the finding that was added; null if it is a duplicate or there are too many of its
  /// kind.
  proto::Finding* append(Id id, std::string found);

  static constexpr std::size_t kMostOfAKind = 64;

  Side side_;
  std::vector<proto::Finding> list_;
  std::map<Id, std::size_t> added_;
};

bool is_blocker(const proto::Finding& finding);

/// Joins the blockers into the reason of a refusal: "<found> [<id>]; ...".
std::string reason_of(const std::vector<proto::Finding>& findings);

/// Formats a warning as a note of a report: "<found> [<id>]".
std::string note_of(const proto::Finding& finding);

}  // namespace gcr::findings
