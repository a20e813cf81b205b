#include "migrate-agent/criu/sockets/connections.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <map>
#include <utility>

#include "migrate-agent/criu/launch/criu_rpc.pb.h"
#include "migrate-agent/process/inspect/sockets.h"

namespace gcr::criu {
namespace {

namespace fs = std::filesystem;

using images::damaged;
using images::kFilesImage;
using images::ReadImage;
using images::WriteImage;
using Words = google::protobuf::RepeatedField<std::uint32_t>;

constexpr char kOldSockets[] = "inetsk.img";
constexpr std::size_t kMagicBytes = 8;
constexpr std::size_t kLengthBytes = 4;
constexpr std::uint32_t kForReading = 1;  ///< bits of a shutdown
constexpr std::uint32_t kForWriting = 2;

/// Empty if it is none.
std::string address_in(std::uint32_t family, const Words& words) {
  const bool fits = family == AF_INET ? words.size() >= 1 : words.size() == 4;
  if ((family != AF_INET && family != AF_INET6) || !fits) return {};
  return process::address_text(static_cast<int>(family), words.data());
}

void put_address(std::uint32_t family, const std::string& address, Words& words) {
  if (address_in(family, words) == address) return;
  std::array<std::uint32_t, 4> number{};
  const bool mapped = family == AF_INET6 && address.find(':') == std::string::npos;
  const std::string text = (mapped ? "::ffff:" : "") + address;
  ::inet_pton(static_cast<int>(family), text.c_str(), number.data());
  words.Assign(number.begin(), number.begin() + (family == AF_INET ? 1 : 4));
}

bool is_tcp(const wire::InternetSocket& socket) {
  return socket.protocol() == IPPROTO_TCP && socket.type() == SOCK_STREAM;
}

bool is_udp(const wire::InternetSocket& socket) {
  return (socket.protocol() == IPPROTO_UDP || socket.protocol() == IPPROTO_UDPLITE) &&
         socket.type() == SOCK_DGRAM;
}

/// As CRIU tells them.
bool is_connection(const wire::InternetSocket& socket) {
  return is_tcp(socket) && socket.dst_port() != 0;
}

bool has_sent_fin(const wire::InternetSocket& socket) {
  const std::uint32_t state = socket.state();
  return state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_CLOSING ||
         state == TCP_LAST_ACK;
}

bool has_received_fin(const wire::InternetSocket& socket) {
  const std::uint32_t state = socket.state();
  return state == TCP_CLOSE_WAIT || state == TCP_LAST_ACK || state == TCP_CLOSING;
}

/// A socket of files.img.
struct Socket {
  wire::InternetSocket* entry;
  TcpConnection ends;  ///< also of sockets that are no connections
};

/// Sockets of the Internet among the open files.
struct OpenFiles {
  std::vector<wire::FileEntry> entries;
  std::vector<Socket> sockets;
  std::map<TcpConnection, const wire::InternetSocket*> connections;

  /// The other end of a connection, null if it is not there.
  const wire::InternetSocket* other_end(const Socket& socket) const {
    const auto found = connections.find(socket.ends.other_end());
    return found == connections.end() ? nullptr : found->second;
  }
};

Result<OpenFiles> read_files(const ReadImage& read) {
  GCR_ASSIGN(const std::string image, read(kFilesImage));
  OpenFiles files;
  GCR_ASSIGN(files.entries,
             images::entries_in<wire::FileEntry>(image, images::kFilesMagic, kFilesImage));
  for (wire::FileEntry& entry : files.entries) {
    if (!entry.has_isk()) continue;
    wire::InternetSocket& socket = *entry.mutable_isk();
    const std::string local = address_in(socket.family(), socket.src_addr());
    const std::string remote = address_in(socket.family(), socket.dst_addr());
    if (local.empty() || remote.empty() || socket.src_port() > UINT16_MAX ||
        socket.dst_port() > UINT16_MAX) {
      return damaged(kFilesImage);
    }
    const TcpConnection ends{{local, static_cast<std::uint16_t>(socket.src_port())},
                             {remote, static_cast<std::uint16_t>(socket.dst_port())}};
    files.sockets.push_back({&socket, ends});
    if (is_connection(socket) && !files.connections.emplace(ends, &socket).second) {
      return damaged(kFilesImage);
    }
  }
  return files;
}

/// A tcp-stream-*.img.
struct Stream {
  wire::TcpStream head;
  std::string queues;
};

std::string stream_name(const wire::InternetSocket& socket) {
  return fmt::format("tcp-stream-{:x}.img", socket.ino());
}

Result<Stream> read_stream(const ReadImage& read, const wire::InternetSocket& socket) {
  const std::string name = stream_name(socket);
  GCR_ASSIGN(const std::string image, read(name));
  const auto record = images::record_in(image, images::kTcpStreamMagic);
  Stream stream;
  if (!record || !stream.head.ParseFromString(*record)) return damaged(name);
  stream.queues = image.substr(kMagicBytes + kLengthBytes + record->size());
  const std::uint64_t queued = std::uint64_t{stream.head.inq_len()} + stream.head.outq_len();
  if (stream.queues.size() < queued) return damaged(name);
  return stream;
}

/// The number after the last byte that this end has written, or received in order.
std::uint32_t written(const Stream& stream, const wire::InternetSocket& socket) {
  return stream.head.outq_seq() - (has_sent_fin(socket) ? 1 : 0);
}
std::uint32_t received(const Stream& stream, const wire::InternetSocket& socket) {
  return stream.head.inq_seq() - (has_received_fin(socket) ? 1 : 0);
}

/// The kernel may have delivered more between the dumps of both ends: what the receiver's image has
/// goes on where the queue of the sender's image still has everything.
Status check_nothing_is_missing(const ReadImage& read, const Socket& sender,
                                const wire::InternetSocket& receiver) {
  GCR_ASSIGN(const Stream out, read_stream(read, *sender.entry));
  GCR_ASSIGN(const Stream in, read_stream(read, receiver));
  const std::uint32_t unwritten = written(out, *sender.entry) - received(in, receiver);
  if (unwritten <= out.head.outq_len()) return {};
  return Error(Code::kUnavailable,
               fmt::format("bytes from {} to {} were in flight during the dump; try again",
                           sender.ends.local.to_string(), sender.ends.remote.to_string()));
}

/// The edits of one directory of images.
class Adapter {
 public:
  Adapter(const fs::path& directory, const FindAddress& find_address, const KeptNetwork& kept)
      : directory_(directory), find_address_(find_address), kept_(kept) {}

  Result<AdaptedSockets> run() {
    // Older releases of CRIU wrote it, and newer ones still read it.
    if (std::error_code error; fs::exists(directory_ / kOldSockets, error)) {
      return damaged(kOldSockets);
    }
    GCR_ASSIGN(files_, read_files(read_));
    if (files_.sockets.empty()) return std::move(adapted_);
    for (const Socket& socket : files_.sockets) {
      if (is_udp(*socket.entry)) receivers_.insert(socket.ends.local);
    }
    for (Socket& socket : files_.sockets) {
      rename_interfaces(*socket.entry);
      const wire::InternetSocket* const other = files_.other_end(socket);
      if (!is_connection(*socket.entry)) {
        GCR_TRY(adapt_unconnected(socket));
      } else if (other != nullptr) {
        GCR_TRY(adapt_inside(socket));
      } else if (kept_.addresses.contains(socket.ends.local.address)) {
        GCR_TRY(read_stream(read_, *socket.entry));  // complete
      } else {
        GCR_TRY(adapt_outside(socket));
      }
    }
    GCR_TRY(images::write_file(directory_ / kFilesImage,
                               images::image_of(images::kFilesMagic, files_.entries)));
    return std::move(adapted_);
  }

 private:
  Result<std::string> here(const std::string& address) const {
    if (auto found = find_address_(address)) return *found;
    return Error(Code::kRefused, fmt::format("no address here stands for {}", address));
  }

  std::string interface_here(const std::string& name) const {
    const auto found = kept_.interfaces.find(name);
    return found == kept_.interfaces.end() ? name : found->second;
  }

  /// Of a socket that is bound to one.
  void rename_interfaces(wire::InternetSocket& entry) const {
    if (entry.has_ifname()) entry.set_ifname(interface_here(entry.ifname()));
    if (!entry.opts().has_so_bound_dev()) return;
    entry.mutable_opts()->set_so_bound_dev(interface_here(entry.opts().so_bound_dev()));
  }

  /// Addresses of this host for both ends, of which the remote one may stay what it was.
  Status rename(Socket& socket, bool also_remote) {
    wire::InternetSocket& entry = *socket.entry;
    GCR_ASSIGN(socket.ends.local.address, here(socket.ends.local.address));
    put_address(entry.family(), socket.ends.local.address, *entry.mutable_src_addr());
    if (!also_remote) return {};
    GCR_ASSIGN(socket.ends.remote.address, here(socket.ends.remote.address));
    put_address(entry.family(), socket.ends.remote.address, *entry.mutable_dst_addr());
    return {};
  }

  Status adapt_unconnected(Socket& socket) {
    GCR_TRY(rename(socket, is_udp(*socket.entry) && has_receiver(socket.ends.remote)));
    if (socket.ends.local.port == 0) return {};
    if (is_tcp(*socket.entry)) adapted_.bound.push_back({"tcp", socket.ends.local});
    if (is_udp(*socket.entry)) adapted_.bound.push_back({"udp", socket.ends.local});
    return {};
  }

  /// Whether what is sent there by UDP comes to one of these sockets.
  bool has_receiver(const TcpEnd& end) const {
    if (end.port == 0) return false;
    return receivers_.contains(end) || receivers_.contains({"0.0.0.0", end.port}) ||
           receivers_.contains({"::", end.port});
  }

  Status adapt_inside(Socket& socket) {
    GCR_TRY(rename(socket, true));
    wire::InternetSocket& entry = *socket.entry;
    GCR_ASSIGN(Stream stream, read_stream(read_, entry));
    stream.head.set_outq_seq(written(stream, entry));
    if (has_sent_fin(entry)) adapted_.closing.insert(socket.ends);
    if (has_received_fin(entry) && stream.head.has_rcv_wup()) {
      stream.head.set_rcv_wup(stream.head.rcv_wup() - 1);
      stream.head.set_rcv_wnd(stream.head.rcv_wnd() + 1);
    }
    return write_open(entry, stream);
  }

  Status adapt_outside(Socket& socket) {
    wire::InternetSocket& entry = *socket.entry;
    const bool v4 = socket.ends.local.address.find(':') == std::string::npos;
    const std::string loopback = v4 ? "127.0.0.1" : "::1";
    socket.ends.local.address = socket.ends.remote.address = loopback;
    // Small ports: no connection comes from there.
    if (++dead_ends_[socket.ends.local] == 0) return damaged(kFilesImage);
    socket.ends.remote.port = dead_ends_[socket.ends.local];
    put_address(entry.family(), loopback, *entry.mutable_src_addr());
    put_address(entry.family(), loopback, *entry.mutable_dst_addr());
    entry.set_dst_port(socket.ends.remote.port);
    entry.clear_ifname();
    adapted_.resetting.insert(socket.ends);
    GCR_ASSIGN(Stream stream, read_stream(read_, entry));
    stream.head.set_outq_len(0);
    stream.queues.resize(stream.head.inq_len());
    stream.head.clear_snd_wl1();
    stream.head.clear_snd_wnd();
    stream.head.clear_max_window();
    stream.head.clear_rcv_wnd();
    stream.head.clear_rcv_wup();
    return write_open(entry, stream);
  }

  /// As a connection that neither end has closed, and that has sent all that it could.
  Status write_open(wire::InternetSocket& entry, Stream& stream) {
    stream.head.set_inq_seq(received(stream, entry));
    stream.head.set_unsq_len(0);
    std::uint32_t shutdown = entry.shutdown();
    if (has_received_fin(entry)) shutdown &= ~kForReading;
    if (has_sent_fin(entry)) shutdown &= ~kForWriting;
    if (entry.has_shutdown()) entry.set_shutdown(shutdown);
    if (shutdown == 0) entry.clear_shutdown();
    entry.set_state(TCP_ESTABLISHED);
    return images::write_file(
        directory_ / stream_name(entry),
        images::image_of(images::kTcpStreamMagic, stream.head.SerializeAsString()) + stream.queues);
  }

  const fs::path& directory_;
  const FindAddress& find_address_;
  const KeptNetwork& kept_;
  const ReadImage read_ = [this](const std::string& name) {
    return images::read_file(directory_ / name);
  };
  OpenFiles files_;
  AdaptedSockets adapted_;
  std::set<TcpEnd> receivers_;                 ///< by UDP, as the source named them
  std::map<TcpEnd, std::uint16_t> dead_ends_;  ///< the last port that an end was connected to
};

}  // namespace

Status settle_connections(const ReadImage& read, const WriteImage& write,
                          process::OutsideTcp outside) {
  GCR_ASSIGN(OpenFiles files, read_files(read));
  bool locked = false;
  for (const Socket& socket : files.sockets) {
    if (!is_connection(*socket.entry) || socket.entry->opts().so_filter_size() != 1) continue;
    socket.entry->mutable_opts()->clear_so_filter();
    locked = true;
  }
  if (locked) GCR_TRY(write(kFilesImage, images::image_of(images::kFilesMagic, files.entries)));
  for (const Socket& socket : files.sockets) {
    if (!is_connection(*socket.entry) || socket.entry->state() == TCP_CLOSE) continue;
    const wire::InternetSocket* const other = files.other_end(socket);
    if (other != nullptr) {
      GCR_TRY(check_nothing_is_missing(read, socket, *other));
    } else if (outside == process::OutsideTcp::kRefuse) {
      return Error(Code::kRefused,
                   fmt::format("a TCP connection from {} to {}, whose other end is outside of the "
                               "job, was made since the preflight",
                               socket.ends.local.to_string(), socket.ends.remote.to_string()));
    }
  }
  return {};
}

Result<AdaptedSockets> adapt_sockets(const fs::path& directory, const FindAddress& find_address,
                                     const KeptNetwork& kept) {
  return Adapter(directory, find_address, kept).run();
}

}  // namespace gcr::criu
