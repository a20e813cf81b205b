// TCP for the conformance suite, plain or under TLS, always through a relay that can break it.
#pragma once

#include "tests/conformance/transport_under_test.h"

namespace gcr::test {

/// The two live as long as the program.
const TransportUnderTest* tcp_plain();
const TransportUnderTest* tcp_tls();

}  // namespace gcr::test
