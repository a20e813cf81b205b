// Every finding of preflight: its stable identifier, whether it forbids a migration, why it matters
// and what to do. docs/preflight.md has the same table for people.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/control.pb.h"

namespace gcr::findings {

/// Each by a name of its own: kNoProcess is "no-process".
enum class Id : std::uint8_t {
#define GCR_FINDING(name, ...) name,
#include "migrate-agent/base/findings/catalogue.def"
#undef GCR_FINDING
};
using enum Id;

/// Which agent finds it.
enum class Where { kSource, kDestination, kEither };

struct Kind {
  std::string_view id;
  proto::Finding::Severity severity;
  Where where;
  bool about_gpus;       ///< about taking a job off its GPUs; others are about moving it elsewhere
  bool acceptable;       ///< a blocker that an operator may make a warning, by its id
  std::string_view why;  ///< one sentence, as the next
  std::string_view remedy;  ///< what to do about it
};

const Kind& kind_of(Id id);

/// All of them, in the order in which they are documented. Static.
std::span<const Kind> catalogue();

/// What to do about some devices and kernel objects in place of what their kind of finding says.
struct ObjectRemedy {
  std::string_view name;  ///< how the object's name begins: "/dev/…", "anon_inode:[…]"
  std::string_view remedy;
};

/// All of them, in the order in which they are documented. Static.
std::span<const ObjectRemedy> object_remedies();

/// Which blockers an operator may make warnings.
bool can_be_accepted(std::string_view id);

/// Where something was found.
enum class Side { kSource, kDestination };

/// A finding of this kind; `found` is a sentence without a final full stop, with names and figures.
proto::Finding make_finding(Id id, Side side, std::string found);

bool is(const proto::Finding& finding, Id id);

/// Kind::about_gpus; false for what another release has found and this one does not know.
bool is_about_gpus(const proto::Finding& finding);

/// The findings of one examination of a host or a process, each once: members of a job often have
/// the same.
class Findings {
 public:
  explicit Findings(Side side) : side_(side) {}

  Side side() const { return side_; }
  /// At most kMostOfAKind of one kind: the last one says that there are more.
  void add(Id id, std::string found);
  /// The same about a device or an object of the kernel, which may have a remedy of its own.
  void add_object(Id id, std::string found, std::string_view name);
  void take(std::vector<proto::Finding> findings);
  /// Makes warnings of the blockers with these ids that can be accepted.
  void accept(const google::protobuf::RepeatedPtrField<std::string>& ids);
  bool has_blocker() const;

  const std::vector<proto::Finding>& list() const { return list_; }
  std::vector<proto::Finding> release() { return std::move(list_); }

 private:
  bool has(std::string_view id, std::string_view found) const;
  /// The finding that was added; null if it is there, or there are too many of the kind.
  proto::Finding* append(Id id, std::string found);

  static constexpr std::size_t kMostOfAKind = 64;

  Side side_;
  std::vector<proto::Finding> list_;
  std::map<Id, std::size_t> added_;
};

bool is_blocker(const proto::Finding& finding);

/// "<found> [<id>]; ...": only the blockers, as the reason of a refusal.
std::string reason_of(const std::vector<proto::Finding>& findings);

/// "<found> [<id>]": a warning, as a note of a report.
std::string note_of(const proto::Finding& finding);

}  // namespace gcr::findings
