// Connections in images: what is changed in transit, and what is refused.
#include "migrate-agent/criu/sockets/connections.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/criu/launch/criu_rpc.pb.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;

using process::OutsideTcp;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kSource[] = "10.0.0.1";
constexpr char kHere[] = "10.0.0.2";
constexpr char kMss[] = "\x38\xb4\x0b";  ///< mss_clamp, the field 7, is 1460

std::string ino_name(std::uint32_t ino) { return "tcp-stream-" + std::to_string(ino) + ".img"; }

class Connections : public testing::Test {
 protected:
  Connections() {
    std::string path = (fs::temp_directory_path() / "gcr-connections-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("no directory");
    directory_ = path;
  }
  ~Connections() override { fs::remove_all(directory_); }

  /// A socket with the inode `ino`, below 10: its number is then the same in every notation.
  wire::InternetSocket& add(std::uint32_t ino, std::uint32_t protocol, const TcpEnd& local,
                            const TcpEnd& remote, std::uint32_t state = TCP_ESTABLISHED) {
    wire::FileEntry& entry = entries_.emplace_back();
    entry.set_type(1);
    entry.set_id(ino);
    wire::InternetSocket& socket = *entry.mutable_isk();
    const bool v6 = local.address.find(':') != std::string::npos;
    socket.set_ino(ino);
    socket.set_family(v6 ? AF_INET6 : AF_INET);
    socket.set_type(protocol == IPPROTO_TCP ? SOCK_STREAM : SOCK_DGRAM);
    socket.set_protocol(protocol);
    socket.set_state(state);
    socket.set_src_port(local.port);
    socket.set_dst_port(remote.port);
    std::uint32_t words[4] = {};
    ::inet_pton(v6 ? AF_INET6 : AF_INET, local.address.c_str(), words);
    socket.mutable_src_addr()->Assign(words, words + (v6 ? 4 : 1));
    ::inet_pton(v6 ? AF_INET6 : AF_INET, remote.address.c_str(), words);
    socket.mutable_dst_addr()->Assign(words, words + (v6 ? 4 : 1));
    return socket;
  }

  wire::InternetSocket& add_tcp(std::uint32_t ino, const TcpEnd& local, const TcpEnd& remote,
                                std::uint32_t state = TCP_ESTABLISHED) {
    wire::TcpStream& head = heads_[ino];
    head.set_inq_len(2);
    head.set_inq_seq(1000);
    head.set_outq_len(3);
    head.set_outq_seq(1003);
    head.set_unsq_len(1);
    head.set_rcv_wup(900);
    head.set_rcv_wnd(50);
    return add(ino, IPPROTO_TCP, local, remote, state);
  }

  std::map<std::string, std::string> images() {
    std::map<std::string, std::string> images;
    std::vector<std::string> records;
    for (const wire::FileEntry& entry : entries_) records.push_back(entry.SerializeAsString());
    images["files.img"] = images::image_of(images::kFilesMagic, records);
    for (auto& [ino, head] : heads_) {
      // A field that this project does not know is kept.
      *head.mutable_unknown_fields() = kMss;
      images[ino_name(ino)] =
          images::image_of(images::kTcpStreamMagic, head.SerializeAsString()) + "inout";
    }
    return images;
  }

  Status settle(OutsideTcp outside, std::map<std::string, std::string>& images) {
    return settle_connections(
        [&](const std::string& name) -> Result<std::string> { return images[name]; },
        [&](const std::string& name, const std::string& content) -> Status {
          images[name] = content;
          return {};
        },
        outside);
  }
  Status settle(OutsideTcp outside) {
    auto settled = images();
    return settle(outside, settled);
  }

  Result<AdaptedSockets> adapt(const KeptNetwork& kept = {}) {
    for (const auto& [name, content] : images()) {
      EXPECT_TRUE(images::write_file(directory_ / name, content));
    }
    auto adapted = adapt_sockets(
        directory_,
        [](const std::string& address) -> std::optional<std::string> {
          if (address == "2001:db8::1") return std::nullopt;
          return address == kSource ? kHere : address;
        },
        kept);
    if (adapted) read_back();
    return adapted;
  }

  void read_back() {
    const auto records =
        images::records_in(*images::read_file(directory_ / "files.img"), images::kFilesMagic);
    ASSERT_TRUE(records);
    ASSERT_EQ(records->size(), entries_.size());
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      ASSERT_TRUE(entries_[i].ParseFromString((*records)[i]));
    }
    for (auto& [ino, head] : heads_) {
      const std::string image = *images::read_file(directory_ / ino_name(ino));
      const auto record = images::record_in(image, images::kTcpStreamMagic);
      ASSERT_TRUE(record && head.ParseFromString(*record));
      queues_[ino] = image.substr(12 + record->size());
    }
  }

  const wire::InternetSocket& socket(std::size_t place) const { return entries_[place].isk(); }
  static std::string text(std::uint32_t family, const auto& words) {
    char text[INET6_ADDRSTRLEN] = "";
    ::inet_ntop(static_cast<int>(family), words.data(), text, sizeof(text));
    return text;
  }
  std::string source(std::size_t place) const {
    return text(socket(place).family(), socket(place).src_addr());
  }
  std::string target(std::size_t place) const {
    return text(socket(place).family(), socket(place).dst_addr());
  }

  fs::path directory_;
  std::vector<wire::FileEntry> entries_;
  std::map<std::uint32_t, wire::TcpStream> heads_;
  std::map<std::uint32_t, std::string> queues_;
};

TEST_F(Connections, BothEndsGetTheNewAddress) {
  add_tcp(1, {kSource, 80}, {kSource, 4000});
  add_tcp(2, {kSource, 4000}, {kSource, 80});
  const auto adapted = adapt();
  ASSERT_TRUE(adapted) << adapted.error().message();
  EXPECT_THAT(adapted->bound, IsEmpty());
  EXPECT_THAT(adapted->closing, IsEmpty());
  EXPECT_THAT(adapted->resetting, IsEmpty());
  for (const std::size_t place : {0, 1}) {
    EXPECT_EQ(source(place), kHere);
    EXPECT_EQ(target(place), kHere);
  }
  // All queued data counts as sent: nothing leaves before the other end exists.
  EXPECT_EQ(heads_[1].unsq_len(), 0u);
  EXPECT_EQ(heads_[1].outq_len(), 3u);
  EXPECT_EQ(heads_[1].outq_seq(), 1003u);
  EXPECT_EQ(queues_[1], "inout");
  EXPECT_EQ(heads_[1].unknown_fields(), kMss);
}

TEST_F(Connections, Ipv4MappedAddressKeepsItsFamily) {
  add_tcp(1, {std::string("::ffff:") + kSource, 80}, {std::string("::ffff:") + kSource, 4000});
  add_tcp(2, {kSource, 4000}, {kSource, 80});
  ASSERT_TRUE(adapt());
  EXPECT_EQ(source(0), std::string("::ffff:") + kHere);
  EXPECT_EQ(target(0), std::string("::ffff:") + kHere);
  EXPECT_EQ(source(1), kHere);
}

TEST_F(Connections, HalfClosedOneIsRestoredOpenAndClosedLater) {
  add_tcp(1, {kSource, 80}, {kSource, 4000}, TCP_FIN_WAIT2).set_shutdown(2);
  add_tcp(2, {kSource, 4000}, {kSource, 80}, TCP_CLOSE_WAIT).set_shutdown(1);
  const auto adapted = adapt();
  ASSERT_TRUE(adapted);
  EXPECT_THAT(adapted->closing, ElementsAre(TcpConnection{{kHere, 80}, {kHere, 4000}}));
  for (const std::size_t place : {0, 1}) {
    EXPECT_EQ(socket(place).state(), static_cast<std::uint32_t>(TCP_ESTABLISHED));
    EXPECT_FALSE(socket(place).has_shutdown());
  }
  EXPECT_EQ(heads_[1].outq_seq(), 1002u);
  EXPECT_EQ(heads_[1].inq_seq(), 1000u);
  EXPECT_EQ(heads_[2].outq_seq(), 1003u);
  EXPECT_EQ(heads_[2].inq_seq(), 999u);
  EXPECT_EQ(heads_[2].rcv_wup(), 899u);
  EXPECT_EQ(heads_[2].rcv_wnd(), 51u);
}

TEST_F(Connections, OutsideOnesAreResetButKeepReceivedData) {
  add_tcp(1, {kSource, 80}, {"192.0.2.1", 4000});
  add_tcp(2, {kSource, 80}, {"192.0.2.2", 4000}, TCP_CLOSE_WAIT).set_shutdown(1);
  const auto adapted = adapt();
  ASSERT_TRUE(adapted);
  EXPECT_EQ(adapted->resetting.size(), 2u);
  for (const std::size_t place : {0, 1}) {
    EXPECT_EQ(source(place), "127.0.0.1");
    EXPECT_EQ(target(place), "127.0.0.1");
    EXPECT_EQ(socket(place).state(), static_cast<std::uint32_t>(TCP_ESTABLISHED));
  }
  EXPECT_NE(socket(0).dst_port(), socket(1).dst_port());
  EXPECT_EQ(queues_[1], "in");
  EXPECT_EQ(heads_[1].outq_len(), 0u);
}

TEST_F(Connections, BoundSocketsAreReported) {
  add(1, IPPROTO_TCP, {kSource, 80}, {"0.0.0.0", 0}, TCP_LISTEN);
  add(2, IPPROTO_UDP, {"0.0.0.0", 53}, {"0.0.0.0", 0}, TCP_CLOSE);
  add(3, IPPROTO_UDP, {kSource, 4000}, {kSource, 53});
  add(4, IPPROTO_UDP, {kSource, 4001}, {kSource, 54});
  const auto adapted = adapt();
  ASSERT_TRUE(adapted);
  ASSERT_EQ(adapted->bound.size(), 4u);
  EXPECT_EQ(adapted->bound[0].protocol, "tcp");
  EXPECT_EQ(adapted->bound[0].end, (TcpEnd{kHere, 80}));
  EXPECT_EQ(adapted->bound[1].end, (TcpEnd{"0.0.0.0", 53}));
  EXPECT_EQ(target(2), kHere);    // the receiver moves too
  EXPECT_EQ(target(3), kSource);  // the outsider stays
}

TEST_F(Connections, AddressWithoutAReplacementIsRefused) {
  add(1, IPPROTO_TCP, {"2001:db8::1", 80}, {"::", 0}, TCP_LISTEN);
  const auto adapted = adapt();
  ASSERT_FALSE(adapted);
  EXPECT_EQ(adapted.error().code(), Code::kRefused);
  EXPECT_THAT(adapted.error().message(), HasSubstr("2001:db8::1"));
}

TEST_F(Connections, DamagedImagesAreRefused) {
  add_tcp(1, {kSource, 80}, {kSource, 4000});
  add_tcp(2, {kSource, 4000}, {kSource, 80});
  heads_[2].set_inq_len(1 << 30);
  EXPECT_EQ(adapt().error().code(), Code::kDataLoss);
  heads_[2].set_inq_len(2);
  entries_[1].mutable_isk()->clear_src_addr();
  EXPECT_EQ(adapt().error().code(), Code::kDataLoss);
  entries_[1].mutable_isk()->add_src_addr(1);
  entries_[1].mutable_isk()->set_src_port(65536);
  EXPECT_EQ(adapt().error().code(), Code::kDataLoss);
  entries_[1] = entries_[0];
  EXPECT_EQ(adapt().error().code(), Code::kDataLoss);
  entries_.pop_back();
  ASSERT_TRUE(images::write_file(directory_ / "inetsk.img", ""));
  EXPECT_EQ(adapt().error().code(), Code::kDataLoss);
}

TEST_F(Connections, OutsideOnesOfAKeptAddressStayAsTheyAre) {
  constexpr char kKept[] = "10.0.0.9";
  add_tcp(1, {kKept, 80}, {"192.0.2.1", 4000}, TCP_CLOSE_WAIT).set_shutdown(1);
  add_tcp(2, {kSource, 80}, {"192.0.2.1", 4000});
  *heads_[1].mutable_unknown_fields() = kMss;
  const auto before = heads_[1].SerializeAsString();
  const auto adapted = adapt({{kKept}, {}});
  ASSERT_TRUE(adapted);
  EXPECT_EQ(adapted->resetting.size(), 1u);
  EXPECT_EQ(source(0), kKept);
  EXPECT_EQ(target(0), "192.0.2.1");
  EXPECT_EQ(socket(0).state(), static_cast<std::uint32_t>(TCP_CLOSE_WAIT));
  EXPECT_EQ(socket(0).shutdown(), 1u);
  EXPECT_EQ(heads_[1].SerializeAsString(), before);
  EXPECT_EQ(queues_[1], "inout");
  EXPECT_EQ(source(1), "127.0.0.1");
  heads_[1].set_inq_len(1000);
  EXPECT_EQ(adapt({{kKept}, {}}).error().code(), Code::kDataLoss);
}

TEST_F(Connections, InterfacesOfAKeptNetworkHaveTheNamesOfTheDestination) {
  constexpr char kKept[] = "10.0.0.9";
  for (const std::uint32_t ino : {1u, 2u}) {
    auto& entry = add_tcp(ino, {kKept, static_cast<std::uint16_t>(80 + ino)}, {"192.0.2.1", 4000});
    entry.set_ifname(ino == 1 ? "eth1" : "lo");
    entry.mutable_opts()->set_so_bound_dev(ino == 1 ? "eth1" : "lo");
  }
  ASSERT_TRUE(adapt({{kKept}, {{"eth1", "eth0"}}}));
  EXPECT_EQ(socket(0).ifname(), "eth0");
  EXPECT_EQ(socket(0).opts().so_bound_dev(), "eth0");
  EXPECT_EQ(socket(1).ifname(), "lo");
  EXPECT_EQ(socket(1).opts().so_bound_dev(), "lo");
}

TEST_F(Connections, SourceRefusesOutsidersUnlessClosedOrKept) {
  add_tcp(1, {kSource, 80}, {"192.0.2.1", 4000});
  EXPECT_TRUE(settle(OutsideTcp::kClose));
  EXPECT_TRUE(settle(OutsideTcp::kKeep));
  const Status refused = settle(OutsideTcp::kRefuse);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_THAT(refused.error().message(), HasSubstr("10.0.0.1:80 to 192.0.2.1:4000"));
}

TEST_F(Connections, SourceFindsBytesLostByBothEnds) {
  add_tcp(1, {kSource, 80}, {kSource, 4000});
  add_tcp(2, {kSource, 4000}, {kSource, 80});
  heads_[1].set_outq_seq(1003);  // has bytes 1000 to 1002
  heads_[2].set_outq_seq(1000);
  heads_[2].set_outq_len(0);
  for (const std::uint32_t received : {1000, 1001, 1003}) {
    heads_[2].set_inq_seq(received);
    EXPECT_TRUE(settle(OutsideTcp::kRefuse)) << received;
  }
  for (const std::uint32_t received : {999, 1004}) {
    heads_[2].set_inq_seq(received);
    EXPECT_EQ(settle(OutsideTcp::kRefuse).error().code(), Code::kUnavailable) << received;
  }
}

TEST_F(Connections, SourceRemovesTheLockFromTheImages) {
  add_tcp(1, {kSource, 80}, {kSource, 4000}).mutable_opts()->add_so_filter(6);
  add_tcp(2, {kSource, 4000}, {kSource, 80});
  for (int i = 0; i < 2; ++i) entries_[1].mutable_isk()->mutable_opts()->add_so_filter(7);
  for (auto& [ino, head] : heads_) head.set_inq_seq(1000);
  auto settled = images();
  const Status done = settle(OutsideTcp::kRefuse, settled);
  ASSERT_TRUE(done) << done.error().message();
  const auto records = images::records_in(settled["files.img"], images::kFilesMagic);
  ASSERT_TRUE(records);
  wire::FileEntry entry;
  ASSERT_TRUE(entry.ParseFromString((*records)[0]));
  EXPECT_EQ(entry.isk().opts().so_filter_size(), 0);
  ASSERT_TRUE(entry.ParseFromString((*records)[1]));
  EXPECT_EQ(entry.isk().opts().so_filter_size(), 2);  // set by the program
}

}  // namespace
}  // namespace gcr::criu
