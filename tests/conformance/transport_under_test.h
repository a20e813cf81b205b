// The interface of a transport under test: a way to make a transfer, and its capabilities. Every
// test of this folder runs over every transport; for a missing capability it has another
// expectation, stated in the test.
//
// A program is made of the tests (gcr_conformance) and one source that implements Transfer and
// TransportUnderTest and defines transports_under_test(): see tcp_under_test.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "src/base/units.h"
#include "transport/channel.h"

namespace gcr::test {

struct Capabilities {
  bool shows_token = false;   ///< a wrong token is refused when the sender connects
  bool certificates = false;  ///< a peer of another authority or role is refused
  bool reconnects = false;    ///< a connection that is lost once is made again
  /// The refusal of a write reaches the sender in the receiver's words: code, region, numbers. If
  /// not, the device refuses: kInvalidArgument or kNotFound, the one that can be known.
  bool says_why_refused = false;
  /// The most that one test should transfer: seconds, not minutes, on the slowest machine for it.
  std::uint64_t largest_bytes = 64 * kMiB;
  /// The longest region; if it is much longer than the memory behind it, that is mapped there many
  /// times.
  std::uint64_t largest_region_bytes = 64 * kMiB;
  /// Removing and adding a region is known to the sender when it returns.
  bool knows_regions_at_once = false;
  /// More than the network and both ends buffer, so that a write of it needs the receiver.
  std::uint64_t more_than_buffers = 64 * kMiB;
};

/// The options of one transfer.
struct TransferOptions {
  unsigned lanes = 1;
  unsigned max_lanes = 64;
  transport::OnLanded on_landed = {};
  bool wrong_token = false;
  bool wrong_authority = false;
  bool wrong_role = false;
  /// Both ends time out a silent peer, and the sender a lost one, within a few seconds. Otherwise
  /// as late as in production: on a busy machine, a working peer may be silent for seconds.
  bool impatient = false;
};

/// The two ends of a transfer and the network between them.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual transport::Receiver& receiver() = 0;

  /// Connects the sender; at most once. Then `channel()` exists.
  virtual Status connect() = 0;
  virtual transport::Channel& channel() = 0;

  /// The receiver's name in the sender's errors.
  virtual std::string address() const = 0;

  /// Breaks the network between the ends, at once and permanently; thread-safe.
  virtual void cut() = 0;
  /// Breaks it permanently after about this many further bytes from the sender.
  virtual void cut_after(std::int64_t bytes) = 0;
  /// The network silently accepts nothing more; thread-safe.
  virtual void stall() = 0;

  /// Breaks the current connections, or those after about this many further bytes from the sender;
  /// later connections work. Called only if Capabilities::reconnects; thread-safe.
  virtual void interrupt() = 0;
  virtual void interrupt_after(std::int64_t bytes) = 0;

  /// Destroys the receiver, or the sender, as the end of its process would.
  virtual void destroy_receiver() = 0;
  virtual void destroy_channel() = 0;
};

class TransportUnderTest {
 public:
  virtual ~TransportUnderTest() = default;
  virtual std::string name() const = 0;  ///< letters and digits
  virtual Capabilities capabilities() const = 0;
  /// Never fails; what can fail happens in connect(). Thread-safe.
  virtual std::unique_ptr<Transfer> make(TransferOptions options) const = 0;
};

/// The transports of this program. They live as long as the program.
std::vector<const TransportUnderTest*> transports_under_test();

inline void PrintTo(const TransportUnderTest* transport, std::ostream* out) {
  *out << transport->name();
}

}  // namespace gcr::test
