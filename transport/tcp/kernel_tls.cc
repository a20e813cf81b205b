#include "transport/tcp/kernel_tls.h"

#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <sys/socket.h>

#include <algorithm>

namespace gcr::transport {
namespace {

/// Hands over a key; its first record has the number 0. `Info` is the kernel's type for the cipher.
template <class Info>
bool hand_over(int socket, int direction, std::uint16_t cipher, const RecordKey& key) {
  Info info{};
  info.info.version = TLS_1_3_VERSION;
  info.info.cipher_type = cipher;
  std::copy_n(key.key.data(), sizeof info.key, info.key);
  std::copy_n(key.nonce.data(), sizeof info.salt, info.salt);
  std::copy_n(key.nonce.data() + sizeof info.salt, sizeof info.iv, info.iv);
  const bool taken = ::setsockopt(socket, SOL_TLS, direction, &info, sizeof info) == 0;
  OPENSSL_cleanse(&info, sizeof info);
  return taken;
}

Result<bool> let_kernel(int socket, int direction, const TrafficSecret& secret) {
  // Fails if this was done already, for the other direction; the next call tells.
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls");
  GCR_ASSIGN(const RecordKey key, secret.key());
  switch (EVP_CIPHER_get_nid(secret.cipher())) {
    case NID_aes_128_gcm:
      return hand_over<tls12_crypto_info_aes_gcm_128>(socket, direction, TLS_CIPHER_AES_GCM_128,
                                                      key);
    case NID_aes_256_gcm:
      return hand_over<tls12_crypto_info_aes_gcm_256>(socket, direction, TLS_CIPHER_AES_GCM_256,
                                                      key);
    default:
      return false;
  }
}

}  // namespace

Result<bool> let_kernel_seal(int socket, const TrafficSecret& secret) {
  return let_kernel(socket, TLS_TX, secret);
}

Result<bool> let_kernel_open(int socket, const TrafficSecret& secret) {
  GCR_ASSIGN(const bool taken, let_kernel(socket, TLS_RX, secret));
  if (!taken) return false;
  // No peer pads: content can be decrypted straight into place. A kernel before 6.0 copies.
  const int yes = 1;
  (void)::setsockopt(socket, SOL_TLS, TLS_RX_EXPECT_NO_PAD, &yes, sizeof yes);
  return true;
}

}  // namespace gcr::transport
