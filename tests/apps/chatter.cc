// Many connections, on each of which both ends send numbered lines and check those of the other
// end: a byte that is lost, repeated or changed shows, and so does a connection that ends.
//
// Usage: chatter serve PORT
//            until it is killed; prints "error: …" for each connection that is not as it should be,
//            unless its client has closed it
//        chatter connect ADDRESS PORT N
//            N connections, until SIGTERM; prints "connected" when all have had a line, and at the
//            end "connections=N lines=L lost=K median_pause_ms=M longest_pause_ms=X": lines that
//            arrived, connections that failed, and the longest time between two lines, of the
//            median connection and of all
//
// A line is a number and as many letters as its last two digits say. Environment: CHATTER_PERIOD_MS
// between two lines of a connection (default 200); CHATTER_IDLE_S: a connection without a line for
// this long is lost (default 3600); CHATTER_HALF: clients close their half after the first line.
#include <fmt/format.h>

#include <algorithm>
#include <asio.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <istream>
#include <list>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

std::chrono::milliseconds from_environment(const char* name, long fallback, long unit) {
  const char* const value = std::getenv(name);
  return std::chrono::milliseconds((value == nullptr ? fallback : std::atol(value)) * unit);
}

std::string line_of(std::uint64_t number) {
  return fmt::format("{} {}\n", number,
                     std::string(number % 100, static_cast<char>('a' + number % 26)));
}

/// One end of a connection.
class Talk {
 public:
  /// `goes_on`: to send, when the other end has said that it sends no more.
  Talk(tcp::socket socket, bool goes_on)
      : goes_on_(goes_on), socket_(std::move(socket)), pause_(socket_.get_executor()) {}

  void begin() {
    socket_.set_option(tcp::no_delay(true));
    heard_ = Clock::now();
    read();
    write();
  }

  std::uint64_t lines() const { return received_; }
  const std::string& failure() const { return failure_; }
  /// The other end has closed the connection.
  bool was_closed() const { return closed_; }
  Clock::duration longest() const { return std::max(longest_, Clock::now() - heard_); }

 private:
  void fail(const std::string& why) {
    if (failure_.empty()) failure_ = fmt::format("{} after {} lines", why, received_);
    pause_.cancel();
    std::error_code ignored;
    socket_.close(ignored);
    if (ended) ended(*this);
  }

  void read() {
    asio::async_read_until(socket_, input_, '\n', [this](std::error_code error, std::size_t) {
      closed_ = closed_ || error == asio::error::eof;
      if (error == asio::error::eof && goes_on_) return;
      if (error) return fail(error.message());
      std::istream stream(&input_);
      std::string line;
      std::getline(stream, line);
      if (line + "\n" != line_of(++received_)) return fail("a wrong line: " + line);
      const auto now = Clock::now();
      if (received_ > 1) longest_ = std::max(longest_, now - heard_);
      heard_ = now;
      read();
    });
  }

  void write() {
    if (Clock::now() - heard_ > idle_ && !closed_) return fail("silence");
    if (half_ && received_ > 0) {
      std::error_code ignored;
      socket_.shutdown(tcp::socket::shutdown_send, ignored);
      return;
    }
    output_ = line_of(++sent_);
    asio::async_write(socket_, asio::buffer(output_), [this](std::error_code error, std::size_t) {
      if (error) return fail(error.message());
      pause_.expires_after(period_);
      pause_.async_wait([this](std::error_code cancelled) {
        if (!cancelled) write();
      });
    });
  }

 public:
  std::function<void(Talk&)> ended{};  ///< called for each that fails

 private:
  const bool goes_on_;
  const std::chrono::milliseconds period_ = from_environment("CHATTER_PERIOD_MS", 200, 1);
  const bool half_ = std::getenv("CHATTER_HALF") != nullptr;
  const std::chrono::milliseconds idle_ = from_environment("CHATTER_IDLE_S", 3600, 1000);
  tcp::socket socket_;
  asio::steady_timer pause_;
  asio::streambuf input_;
  std::string output_;
  std::string failure_;
  bool closed_ = false;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  Clock::time_point heard_{};
  Clock::duration longest_{};
};

using Talks = std::list<Talk>;

void serve(asio::io_context& io, tcp::acceptor& acceptor, Talks& talks) {
  acceptor.async_accept([&](std::error_code error, tcp::socket socket) {
    if (error) throw std::system_error(error, "cannot accept");
    Talk& talk = talks.emplace_back(std::move(socket), true);
    talk.ended = [](const Talk& failed) {
      if (!failed.was_closed()) std::cout << "error: " << failed.failure() << std::endl;
    };
    talk.begin();
    serve(io, acceptor, talks);
  });
}

int serve(std::uint16_t port) {
  asio::io_context io;
  tcp::acceptor acceptor(io, {tcp::v6(), port});  // of both families
  acceptor.listen(4096);
  Talks talks;
  serve(io, acceptor, talks);
  io.run();
  return 0;
}

constexpr std::size_t kToldFailures = 3;

double in_ms(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

int report(const Talks& talks) {
  std::vector<double> pauses;
  std::uint64_t lines = 0;
  std::size_t lost = 0;
  for (const Talk& talk : talks) {
    lines += talk.lines();
    pauses.push_back(in_ms(talk.longest()));
    if (!talk.failure().empty()) {
      if (++lost <= kToldFailures) std::cout << "error: " << talk.failure() << std::endl;
    }
  }
  std::ranges::sort(pauses);
  std::cout << fmt::format(
                   "connections={} lines={} lost={} median_pause_ms={:.0f} longest_pause_ms={:.0f}",
                   talks.size(), lines, lost, pauses[pauses.size() / 2], pauses.back())
            << std::endl;
  return lost == 0 ? 0 : 1;
}

void tell_when_all_talk(asio::steady_timer& timer, const Talks& talks) {
  timer.expires_after(std::chrono::milliseconds(20));
  timer.async_wait([&](std::error_code error) {
    if (error) return;
    if (std::ranges::all_of(talks, [](const Talk& talk) { return talk.lines() > 0; })) {
      std::cout << "connected" << std::endl;
    } else {
      tell_when_all_talk(timer, talks);
    }
  });
}

int connect(const std::string& address, const std::string& port, std::size_t count) {
  asio::io_context io;
  Talks talks;
  const auto to = tcp::resolver(io).resolve(address, port);
  for (std::size_t i = 0; i < count; ++i) {
    tcp::socket socket(io);
    asio::connect(socket, to);
    talks.emplace_back(std::move(socket), false).begin();
  }
  asio::steady_timer timer(io);
  tell_when_all_talk(timer, talks);
  asio::signal_set end(io, SIGTERM);
  end.async_wait([&](std::error_code, int) { io.stop(); });
  io.run();
  return report(talks);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 2 && words[0] == "serve") {
      return serve(static_cast<std::uint16_t>(std::stoul(words[1])));
    }
    if (words.size() == 4 && words[0] == "connect") {
      return connect(words[1], words[2], std::stoul(words[3]));
    }
  } catch (const std::exception& error) {
    std::cout << "error: " << error.what() << std::endl;
    return 1;
  }
  std::cerr << "usage: chatter serve PORT | chatter connect ADDRESS PORT N\n";
  return 2;
}
