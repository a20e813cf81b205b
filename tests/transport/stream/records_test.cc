#include "transport/tcp/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/transport/stream/handshake.h"

namespace gcr::transport {
namespace {

using test::agreed_secrets;
using test::Secrets;

using Bytes = std::vector<std::byte>;

constexpr const char* kAes128 = "TLS_AES_128_GCM_SHA256";

Bytes random_bytes(std::size_t count) {
  std::mt19937_64 random(count);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

void append(Bytes& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

/// All of `plain` in records, as they are sent over the network.
Bytes seal(RecordSealer& sealer, std::span<const std::byte> plain) {
  Bytes sealed;
  std::span<const std::byte> none;
  while (!plain.empty()) {
    EXPECT_TRUE(sealer.add(plain, none));
    if (!sealer.full() && !plain.empty()) continue;
    append(sealed, sealer.sealed());
    sealer.clear();
  }
  return sealed;
}

Bytes seal_update(RecordSealer& sealer) {
  EXPECT_TRUE(sealer.add_update());
  Bytes sealed;
  append(sealed, sealer.sealed());
  sealer.clear();
  return sealed;
}

/// Opens all of `sealed`, in parts of at most `piece` bytes; stops at the first error.
Result<Bytes> open(RecordOpener& opener, std::span<const std::byte> sealed, std::size_t piece) {
  Bytes plain;
  Bytes out(piece);
  for (;;) {
    GCR_ASSIGN(const std::size_t count, opener.open(out));
    append(plain, std::span(out).first(count));
    if (count > 0) continue;
    if (sealed.empty()) return plain;
    const auto room = opener.room();
    const auto some = sealed.first(std::min(room.size(), sealed.size()));
    std::ranges::copy(some, room.begin());
    opener.add(some.size());
    sealed = sealed.subspan(some.size());
  }
}

class Records : public testing::TestWithParam<const char*> {
 protected:
  std::pair<Secrets, Secrets> secrets_ = agreed_secrets(GetParam());
  Result<RecordSealer> sealer_ = RecordSealer::create(secrets_.first.client);
  Result<RecordOpener> opener_ = RecordOpener::create(secrets_.second.client);
};

TEST_P(Records, SealedDataOpensInAnySizes) {
  for (const std::size_t size : {1, 31, 32, 16383, 16384, 16385, 300000}) {
    for (const std::size_t piece : {7, 4096, 16384, 1 << 20}) {
      const Bytes plain = random_bytes(size);
      const auto opened = open(*opener_, seal(*sealer_, plain), piece);
      ASSERT_TRUE(opened) << opened.error().message();
      ASSERT_EQ(*opened, plain) << size << " in pieces of " << piece;
    }
  }
  EXPECT_FALSE(opener_->pending());
}

TEST_P(Records, TwoSpansBecomeOneRecord) {
  const Bytes header = random_bytes(32);
  const Bytes payload = random_bytes(100);
  std::span<const std::byte> first = header;
  std::span<const std::byte> second = payload;
  ASSERT_TRUE(sealer_->add(first, second));
  EXPECT_TRUE(first.empty() && second.empty());
  EXPECT_EQ(sealer_->sealed().size(), kRecordHeaderBytes + 132 + 1 + kTagBytes);
  Bytes both = header;
  append(both, payload);
  const auto opened = open(*opener_, sealer_->sealed(), 1000);
  ASSERT_TRUE(opened);
  EXPECT_EQ(*opened, both);
}

TEST_P(Records, EveryChangedByteIsNoticed) {
  const Bytes plain = random_bytes(40);
  const Bytes sealed = seal(*sealer_, plain);
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    auto opener = RecordOpener::create(secrets_.second.client);
    Bytes changed = sealed;
    changed[i] ^= std::byte{0x10};
    const auto opened = open(*opener, changed, 1000);
    // A length that has grown waits for more.
    EXPECT_TRUE(!opened || opened->empty()) << "byte " << i;
    EXPECT_TRUE(opened || opened.error().code() == Code::kProtocol);
  }
}

TEST_P(Records, LostRepeatedOrMovedRecordIsNoticed) {
  const Bytes one = seal(*sealer_, random_bytes(40));
  const Bytes two = seal(*sealer_, random_bytes(40));
  const auto fails = [this](std::initializer_list<const Bytes*> records) {
    auto opener = RecordOpener::create(secrets_.second.client);
    Bytes sealed;
    for (const Bytes* record : records) append(sealed, *record);
    return !open(*opener, sealed, 1000);
  };
  EXPECT_FALSE(fails({&one, &two}));
  EXPECT_TRUE(fails({&two}));
  EXPECT_TRUE(fails({&one, &one}));
  EXPECT_TRUE(fails({&two, &one}));
}

TEST_P(Records, NothingOpensAfterAnInvalidRecord) {
  const Bytes good = seal(*sealer_, random_bytes(40));
  const Bytes lost = seal(*sealer_, random_bytes(40));
  const Bytes next = seal(*sealer_, random_bytes(40));
  Bytes changed = lost;
  changed.back() ^= std::byte{1};
  ASSERT_TRUE(open(*opener_, good, 1000));
  ASSERT_FALSE(open(*opener_, changed, 1000));
  EXPECT_FALSE(open(*opener_, next, 1000));
}

TEST_P(Records, RecordsPerKeyAreLimited) {
  auto sealer = RecordSealer::create(secrets_.first.client, 3);
  const Bytes plain = random_bytes(10 * kMaxRecordContentBytes);
  const Bytes sealed = seal(*sealer, plain);
  // Ten records of data, and three that announce another key.
  EXPECT_EQ(sealed.size(), 10 * kMaxRecordBytes + 3 * (kRecordHeaderBytes + 5 + 1 + kTagBytes));
  const auto opened = open(*opener_, sealed, 1 << 20);
  ASSERT_TRUE(opened);
  EXPECT_EQ(*opened, plain);
}

TEST_P(Records, KeyUpdatesAreFollowedAndOldKeysRefused) {
  const Bytes before = random_bytes(20000);
  const Bytes after = random_bytes(30000);
  Bytes sealed = seal(*sealer_, before);
  append(sealed, seal_update(*sealer_));
  append(sealed, seal_update(*sealer_));
  append(sealed, seal(*sealer_, after));
  Bytes both = before;
  append(both, after);
  const auto opened = open(*opener_, sealed, 3);
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_EQ(*opened, both);
  auto of_old_key = RecordSealer::create(secrets_.first.client);
  EXPECT_FALSE(open(*opener_, seal(*of_old_key, before), 1000));
}

INSTANTIATE_TEST_SUITE_P(EveryCipher, Records,
                         testing::Values(kAes128, "TLS_AES_256_GCM_SHA384",
                                         "TLS_CHACHA20_POLY1305_SHA256"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TrafficSecrets, AreSharedByBothEndsAndUniqueOtherwise) {
  const auto [client, server] = agreed_secrets(kAes128);
  const auto key = [](const TrafficSecret& secret) {
    const auto made = secret.key();
    return made ? made->key : RecordKey().key;
  };
  EXPECT_EQ(key(client.client), key(server.client));
  EXPECT_EQ(key(client.server), key(server.server));
  EXPECT_NE(key(client.client), key(client.server));
  EXPECT_NE(key(client.client), key(agreed_secrets(kAes128).first.client));
  TrafficSecret next = client.client;
  ASSERT_TRUE(next.update());
  EXPECT_NE(key(next), key(client.client));
}

/// One correctly sealed record, of `type`: a peer can send it, this code never does.
Bytes record_of(RecordCipher& cipher, const Bytes& content, std::byte type) {
  const std::size_t length = content.size() + 1 + kTagBytes;
  Bytes record = {std::byte{23}, std::byte{3}, std::byte{3}, static_cast<std::byte>(length >> 8),
                  static_cast<std::byte>(length)};
  record.resize(kRecordHeaderBytes + length);
  std::byte* const sealed = record.data() + kRecordHeaderBytes;
  EXPECT_TRUE(cipher.begin(std::span(record).first<kRecordHeaderBytes>()));
  EXPECT_TRUE(cipher.apply(content, sealed));
  EXPECT_TRUE(cipher.apply(std::span(&type, 1), sealed + content.size()));
  EXPECT_TRUE(cipher.finish_sealing(sealed + content.size() + 1));
  return record;
}

TEST(HostileRecords, OnlyDataAndKeyUpdatesAreAccepted) {
  const auto secrets = agreed_secrets(kAes128);
  const Bytes key_update = {std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1}, std::byte{0}};
  const Bytes update_both = {std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1}, std::byte{1}};
  const auto opens = [&](const Bytes& content, int type, std::size_t piece) {
    auto cipher = RecordCipher::create(secrets.first.client, true);
    auto opener = RecordOpener::create(secrets.second.client);
    return open(*opener, record_of(*cipher, content, static_cast<std::byte>(type)), piece)
        .has_value();
  };
  EXPECT_TRUE(opens(key_update, 23, 1000));
  EXPECT_TRUE(opens(key_update, 22, 1000));
  EXPECT_TRUE(opens(key_update, 22, 2));
  EXPECT_FALSE(opens(update_both, 22, 1000));
  EXPECT_FALSE(opens(Bytes(6), 22, 1000));
  EXPECT_FALSE(opens(Bytes(16384), 22, 1000));
  EXPECT_FALSE(opens(Bytes(2), 21, 1000));  // an alert
  EXPECT_FALSE(opens(key_update, 0, 1000));
  EXPECT_FALSE(opens({}, 23, 1000));  // an empty one
}

TEST(HostileRecords, ImpossibleHeadersAreRefused) {
  const auto secrets = agreed_secrets(kAes128);
  const auto refused = [&](std::initializer_list<int> header) {
    auto opener = RecordOpener::create(secrets.second.client);
    Bytes bytes;
    for (const int byte : header) bytes.push_back(static_cast<std::byte>(byte));
    const auto opened = open(*opener, bytes, 1000);
    return !opened && opened.error().code() == Code::kProtocol;
  };
  EXPECT_TRUE(refused({22, 3, 3, 0, 40}));
  EXPECT_TRUE(refused({23, 3, 1, 0, 40}));
  EXPECT_TRUE(refused({23, 3, 3, 0, 0}));
  EXPECT_TRUE(refused({23, 3, 3, 0, 17}));
  EXPECT_TRUE(refused({23, 3, 3, 0x40, 18}));
  EXPECT_TRUE(refused({23, 3, 3, 0xff, 0xff}));
  EXPECT_FALSE(refused({23, 3, 3, 0x40, 17}));  // the longest possible; its bytes are still to come
}

}  // namespace
}  // namespace gcr::transport
