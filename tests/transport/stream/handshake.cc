#include "tests/transport/stream/handshake.h"

#include <future>
#include <stdexcept>

#include "tests/support/tcp_relay.h"

namespace gcr::test {

using transport::TrafficSecret;

std::pair<UniqueFd, UniqueFd> connected_pair() {
  const LoopbackListener listener;
  UniqueFd client = connect_loopback(listener.port());
  return {std::move(client), listener.accept()};
}

Secrets shake_hands(const UniqueFd& socket, bool client, const char* ciphers) {
  const TestContexts& contexts = test_contexts();
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(
      SSL_new(client ? contexts.client.get() : contexts.server.get()), &SSL_free);
  char good = 1;
  const bool made = SSL_set_fd(ssl.get(), socket.get()) == 1 &&
                    SSL_set_ciphersuites(ssl.get(), ciphers) == 1 &&
                    SSL_set_num_tickets(ssl.get(), 0) == 1 &&
                    (client ? SSL_connect(ssl.get()) == 1 && SSL_read(ssl.get(), &good, 1) == 1
                            : SSL_accept(ssl.get()) == 1 && SSL_write(ssl.get(), &good, 1) == 1);
  if (!made) throw std::runtime_error("no handshake");
  auto of_client = TrafficSecret::export_from(ssl.get(), TrafficSecret::From::kClient);
  auto of_server = TrafficSecret::export_from(ssl.get(), TrafficSecret::From::kServer);
  if (!of_client || !of_server) throw std::runtime_error("no secrets");
  return {*of_client, *of_server};
}

std::pair<Secrets, Secrets> agreed_secrets(const char* ciphers) {
  const auto [client, server] = connected_pair();
  auto theirs = std::async(std::launch::async,
                           [&, &socket = server] { return shake_hands(socket, false, ciphers); });
  Secrets ours = shake_hands(client, true, ciphers);
  return {ours, theirs.get()};
}

}  // namespace gcr::test
