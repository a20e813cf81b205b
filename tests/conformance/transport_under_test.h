// What a transport gives to be tested: a way to make a transfer, and what it is capable of. Every
// test of this folder runs over every transport; one whose capability is missing has another
// expectation, stated in the test.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "transport/channel.h"

namespace gcr::test {

struct Capabilities {
  bool shows_token = false;   ///< a wrong token is refused when the sender connects
  bool certificates = false;  ///< a peer of another authority or role is refused
};

/// How one transfer is to be made.
struct TransferOptions {
  unsigned lanes = 1;
  transport::OnLanded on_landed = {};
  bool wrong_token = false;
  bool wrong_authority = false;
  bool wrong_role = false;
};

/// The two ends of a transfer and the network between them.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual transport::Receiver& receiver() = 0;

  /// Connects the sender; at most once. Then `channel()` is there.
  virtual Status connect() = 0;
  virtual transport::Channel& channel() = 0;

  /// Breaks the network between the ends, at once; thread-safe.
  virtual void cut() = 0;
  /// Breaks it after about so many bytes more from the sender.
  virtual void cut_after(std::int64_t bytes) = 0;
  /// The network takes nothing more, silently; thread-safe.
  virtual void stall() = 0;

  /// Destroys the receiver, or the sender, as the end of its process would.
  virtual void destroy_receiver() = 0;
  virtual void destroy_channel() = 0;
};

class TransportUnderTest {
 public:
  virtual ~TransportUnderTest() = default;
  virtual std::string name() const = 0;
  virtual Capabilities capabilities() const = 0;
  virtual std::unique_ptr<Transfer> make(TransferOptions options) const = 0;
};

inline void PrintTo(const TransportUnderTest* transport, std::ostream* out) {
  *out << transport->name();
}

}  // namespace gcr::test
